"""What networks cost; `[cost]` of questions is in questions/test_predict_question_sections.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.ask.cost import Item, cluster_bill, network_bill
from luwu.predict.hardware.hardware import Link, Network, Server, Switch
from luwu.predict.networks.topologies import AggregationTree, Clos, Dragonfly, Torus

NET = Network(name="net", rate=50e9, efficiency=0.9, latency_s=4e-6)
SWITCH = Switch(name="switch", ports_count=64, port_rate=50e9, price=6400.0, power=640.0)
LINK = Link(name="link", rate=50e9, price=200.0, transceiver_power=10.0)
SERVER = Server(name="server", devices_count=8, price=80e3, power=5e3)
FULL = Clos(endpoints=64, radix=64, network=NET)


def test_networks_without_switches_or_with_routers_have_bills() -> None:
    """Goal: a torus has links alone; a dragonfly's routers are switches of their radix; one host
    needs nothing, and no switch needs to be named."""
    torus = Torus(sizes=(8, 8), network=NET)
    assert network_bill(torus, switch=None, link=LINK).capex == 128 * 200.0
    dragonfly = Dragonfly(groups=9, routers_per_group=4, endpoints_per_router=2, network=NET)
    first, *_ = network_bill(dragonfly, switch=SWITCH, link=LINK).items
    assert (first.what, first.count) == ("switches", 36)
    tree = AggregationTree(endpoints=1, fan_in=4, network=NET)
    for alone in (replace(FULL, endpoints=1), tree, Torus(sizes=(1, 1), network=NET)):
        bill = cluster_bill([Item("hosts", SERVER, 1)], alone, link=LINK)
        assert (bill.capex, bill.watts) == (80e3, 5e3)


def test_bad_prediction_cost() -> None:
    """Goal: links that are too slow, transceivers whose power is not known, too many hosts."""
    slow, bare = replace(LINK, rate=1e9), replace(LINK, transceiver_power=None)
    with pytest.raises(ConfigError, match=r"link.link.rate: 8 Gbit/s, but"):
        network_bill(FULL, switch=SWITCH, link=slow)
    with pytest.raises(ConfigError, match=r"link.link.transceiver_power is .* 128 transceivers"):
        _ = network_bill(FULL, switch=SWITCH, link=bare).watts
    with pytest.raises(ConfigError, match=r"topology.endpoints: the network has 64, .* 65 hosts"):
        cluster_bill([Item("hosts", SERVER, 65)], FULL, switch=SWITCH, link=LINK)
