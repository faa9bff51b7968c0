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
)
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


def test_networks_without_switches_or_with_routers_have_bills() -> None:
    """Goal: a torus has links alone; a dragonfly's routers are switches of their radix."""
    torus = network_bill(Torus(sizes=(8, 8), network=NET), switch=None, link=LINK)
    assert torus.capex == 128 * 200.0
    dragonfly = Dragonfly(groups=9, routers_per_group=4, endpoints_per_router=2, network=NET)
    bill = network_bill(dragonfly, switch=SWITCH, link=LINK)
    assert bill.items[0].what == "switches"
    assert bill.items[0].count == 36


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
