"""What networks and clusters cost: bills, hours, tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.ask.cost import (
    Hosts,
    cluster_bill,
    dollars_per_million_tokens,
    network_bill,
    owned_dollars_per_s,
    rented_dollars_per_s,
    tokens_per_dollar,
)
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hardware import Link, Network, Server, Switch, Tariff
from luwu.predict.networks.topologies import AggregationTree, Clos, Dragonfly, Torus

NET = Network(name="net", rate=50e9, efficiency=0.9, latency_s=4e-6)
SWITCH = Switch(name="switch", ports_count=64, port_rate=50e9, price=6400.0, power=640.0)
LINK = Link(name="link", rate=50e9, price=200.0, transceiver_power=10.0)
SERVER = Server(name="server", devices_count=8, price=80e3, power=5e3, device_rental=2 / 3600)
NODE = Server(name="node", devices_count=0, price=10e3, power=500.0)
TARIFF = Tariff(life_s=1e8, pue=1.25, energy_price=0.1 / 3.6e6)


# ---------------------------------------------------------------------- bills


@pytest.mark.parametrize(("hosts", "tiers"), [(64, 1), (2048, 2), (32_768, 3), (65_536, 3)])
def test_predict_laws_clos_costs_what_the_formula_says(hosts: int, tiers: int) -> None:
    """B2. Goal: n [(2t - 1) P + 2 t c], in dollars and in watts, of full networks."""
    bill = network_bill(Clos(endpoints=hosts, radix=64, network=NET), switch=SWITCH, link=LINK)
    port, transceiver = 100.0, 100.0
    assert bill.capex == pytest.approx(hosts * ((2 * tiers - 1) * port + 2 * tiers * transceiver))
    assert bill.watts == pytest.approx(hosts * ((2 * tiers - 1) * 10.0 + 2 * tiers * 10.0))
    count = {each.what: each.count for each in bill.items}
    assert count["transceivers"] == 2 * count["links"] == 2 * tiers * hosts


def test_predict_laws_one_host_needs_no_network() -> None:
    """Goal: sizes of 1: nothing to buy, and no switch needs to be named."""
    for topology in (
        Clos(endpoints=1, radix=64, network=NET),
        AggregationTree(endpoints=1, fan_in=4, network=NET),
        Torus(sizes=(1, 1), network=NET),
    ):
        bill = network_bill(topology, switch=None, link=LINK)
        assert (bill.capex, bill.watts) == (0.0, 0.0)
        assert cluster_bill([Hosts(server=SERVER, count=1)], topology, link=LINK).capex == 80e3


def test_predict_laws_bills_add_up(catalogue: Catalogue) -> None:
    """B1. Goal: a cluster is its hosts, its nodes with their disks and cards, and its network; the
    parts add up to the whole."""
    disk = replace(catalogue.find("disk", "PM9A3"), price=500.0, power=10.0)
    nic = replace(catalogue.find("nic", "U50"), price=3000.0)
    workers = Hosts(server=SERVER, count=8, added=(("network cards", nic, 2),))
    nodes = Hosts(server=NODE, count=2, added=(("disks", disk, 12),), what="optimizer nodes")
    tree = AggregationTree(endpoints=8, fan_in=4, network=NET, optimizer_nodes=2)
    bill = cluster_bill([workers, nodes], tree, switch=SWITCH, link=LINK)
    assert bill.by_item("price") == {
        "hosts": 8 * 80e3, "optimizer nodes": 20e3, "disks": 24 * 500.0,
        "network cards": 16 * 3000.0, "switches": 3 * 6400.0, "links": 12 * 200.0,
        "transceivers": 0.0,
    }  # fmt: skip
    assert bill.capex == sum(bill.by_item("price").values())
    assert bill.watts == 8 * 5e3 + 2 * 500 + 24 * 10 + 16 * 75 + 3 * 640 + 24 * 10
    assert workers.devices == 64


def test_predict_laws_a_tree_is_cheaper_than_full_bisection() -> None:
    """Goal: one uplink a switch takes fewer switches and links than as many uplinks as hosts."""
    tree = AggregationTree(endpoints=4096, fan_in=63, network=NET)
    clos = Clos(endpoints=4096, radix=64, network=NET)
    bills = [network_bill(each, switch=SWITCH, link=LINK) for each in (tree, clos)]
    assert bills[0].capex < bills[1].capex / 2
    assert bills[0].watts < bills[1].watts / 2


def test_networks_without_switches_or_with_routers_have_bills() -> None:
    """Goal: a torus has links alone; a dragonfly's routers are switches of their radix."""
    torus = network_bill(Torus(sizes=(8, 8), network=NET), switch=None, link=LINK)
    assert torus.capex == 128 * 200.0
    dragonfly = Dragonfly(groups=9, routers_per_group=4, endpoints_per_router=2, network=NET)
    bill = network_bill(dragonfly, switch=SWITCH, link=LINK)
    assert bill.items[0].what == "switches"
    assert bill.items[0].count == 36


# ---------------------------------------------------------------------- an hour, a token


def test_predict_laws_dollars_add_up() -> None:
    """B3, B4. Goal: an owned second is its share of the price and the power with PUE, a rented one
    is rent; dollars a million tokens and tokens a dollar are each other's inverse."""
    hosts = Hosts(server=SERVER, count=10)
    owned = owned_dollars_per_s(hosts.bill, TARIFF)
    assert owned == pytest.approx(800e3 / 1e8 + 50e3 * 1.25 * 0.1 / 3.6e6)
    assert rented_dollars_per_s([hosts]) * 3600 == pytest.approx(160.0)
    each = dollars_per_million_tokens(1e5, owned)
    assert each * tokens_per_dollar(1e5, owned) == pytest.approx(1e6)
    assert dollars_per_million_tokens(2e5, owned) == pytest.approx(each / 2)
    dearer = owned_dollars_per_s(hosts.bill, replace(TARIFF, pue=1.5))
    longer = owned_dollars_per_s(hosts.bill, replace(TARIFF, life_s=2e8))
    assert longer < owned < dearer


def test_the_catalogue_prices_a_cluster(catalogue: Catalogue) -> None:
    """Goal: 128 hosts of 8 H100 on 64-port switches: three quarters of a switch for 16 ports,
    and two links each; the price of hosts is most of it."""
    network = Clos(endpoints=1024, radix=64, network=catalogue.network("ib-ndr"))
    hosts = Hosts(server=catalogue.find("server", "H100x8"), count=128)
    whole = cluster_bill(
        [hosts],
        network,
        switch=catalogue.find("switch", "QM9700"),
        link=catalogue.find("link", "400G"),
    )
    assert whole.by_item("power")["hosts"] == 128 * 10.2e3
    bill = whole.by_item("price")
    assert bill["hosts"] == 128 * 310e3
    assert bill["switches"] == 48 * 36e3
    assert bill["links"] == 2048 * 1320
    assert rented_dollars_per_s([hosts]) * 3600 == pytest.approx(1024 * 2.06)


# ---------------------------------------------------------------------- bad input


def of_radix(radix: int) -> Clos:
    return Clos(endpoints=64, radix=radix, network=NET)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: network_bill(of_radix(128), switch=SWITCH, link=LINK),
            r"switch.switch.ports_count: 64 ports, but the network needs 128 of each switch",
        ),
        (
            lambda: network_bill(of_radix(64), switch=SWITCH, link=replace(LINK, rate=1e9)),
            r"link.link.rate: 8 Gbit/s, but",
        ),
        (
            lambda: network_bill(of_radix(64), switch=replace(SWITCH, price=None), link=LINK).capex,
            r"switch.switch.price is not known, but 1 switches are needed; give it in a file",
        ),
        (
            lambda: (
                network_bill(
                    of_radix(64), switch=SWITCH, link=replace(LINK, transceiver_power=None)
                ).watts
            ),
            r"link.link.transceiver_power is not known, but 128 transceivers are needed",
        ),
        (
            lambda: cluster_bill(
                [Hosts(server=SERVER, count=65)], of_radix(64), switch=SWITCH, link=LINK
            ),
            r"topology.endpoints: the network has 64, but there are 65 hosts",
        ),
        (lambda: dollars_per_million_tokens(1.0, 0.0), r"dollars_per_s: 0.0 is not above"),
        (lambda: replace(TARIFF, life_s=0.0), r"cost.life_years is above 0, .* are 0 and 1.25"),
    ],
)
def test_bad_prediction_cost(make: Any, said: str) -> None:
    """Goal: what is not known or cannot be is refused: the key, what was found, what would fit."""
    with pytest.raises(ConfigError, match=said):
        make()
