"""Flows that share links: laws of fair rates, of bytes and of time."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest

from luwu.base.errors import ConfigError
from luwu.predict.events.flows import Flow, arrivals_s, hashed_paths, max_min_rates, routes_of
from luwu.predict.hardware.hardware import Network
from luwu.predict.networks.rank_groups import RankGroup
from luwu.predict.networks.topologies import AggregationTree, Clos, RailOnly
from luwu.predict.networks.topology_graphs import graph, host, neighbour_flows
from tests.unit.graph_flows import rate_of_flows

NETWORK = Network(name="n", rate=12.5e9, efficiency=0.92, latency_s=5e-6, hop_s=1e-6)
TOPOLOGIES = [
    (Clos(endpoints=16, radix=4, network=NETWORK), RankGroup(size=4, stride=4)),
    (Clos(endpoints=64, radix=16, network=NETWORK, tapers=(3.0,)), RankGroup(size=8, stride=8)),
    (Clos(endpoints=32, radix=8, network=NETWORK, rails=4), RankGroup(size=8, stride=4)),
    (RailOnly(endpoints=32, radix=8, network=NETWORK, domain=4, domain_rate=300e9,
              domain_latency_s=1e-6),
     RankGroup(size=8, stride=4)),
    (AggregationTree(endpoints=16, fan_in=8, network=NETWORK), RankGroup(size=4, stride=4)),
]  # fmt: skip


def links(**capacities: float) -> nx.DiGraph:
    """A graph of `ab=10.0`: a link from a to b."""
    made = nx.DiGraph()
    for (source, target), capacity in capacities.items():
        made.add_edge(source, target, capacity=capacity)
    return made


def flow(source: str, target: str, nbytes: float, **more: Any) -> Flow:
    """Named by its ends, unless it is said."""
    name = more.pop("name", source + target)
    return Flow(name=name, source=source, target=target, nbytes=nbytes, **more)


def end_s(made: nx.DiGraph, flows: list[Flow]) -> float:
    """The last arrival."""
    return max(arrivals_s(made, flows).values())


# ---------------------------------------------------------------------- one, and two


def test_predict_laws_one_flow_is_its_closed_form() -> None:
    """A3. Goal: bytes over the slowest link on its way."""
    made = links(ab=40.0, bc=10.0, cd=20.0)
    assert end_s(made, [flow("a", "d", 200)]) == pytest.approx(20)
    wide = links(ab=40.0, bd=30.0, ac=40.0, cd=10.0)  # half on each way: the 10 binds
    assert end_s(wide, [flow("a", "d", 200)]) == pytest.approx(10)


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_predict_laws_equal_flows_share(count: int) -> None:
    """A2. Goal: n equal flows through a link take n times as long, and end at once."""
    flows = [flow("a", "b", 50, name=str(each)) for each in range(count)]
    found = arrivals_s(links(ab=10.0), flows)
    assert len(found) == count
    assert list(found.values()) == pytest.approx([5 * count] * count)


def test_predict_laws_rates_change_when_flows_end() -> None:
    """A2. Goal: what ends leaves its share to the others."""
    both = [flow("a", "b", 100, name="short"), flow("a", "b", 300, name="long")]
    assert arrivals_s(links(ab=100.0), both) == pytest.approx({"short": 2, "long": 4})


def test_predict_laws_rates_of_the_textbook() -> None:
    """A2. Goal: a long way and two short ones: the first link's two get halves, and who is alone
    with what is left of the second has all of it."""
    made = links(ab=10.0, bc=30.0)
    flows = flow("a", "c", 1), flow("a", "b", 1), flow("b", "c", 1)
    routes = [*routes_of(made, flows).values()]
    capacities = dict(nx.get_edge_attributes(made, "capacity"))
    assert max_min_rates(routes, capacities) == pytest.approx([5, 5, 25])


# ---------------------------------------------------------------------- any network


def any_network(seed: int) -> tuple[nx.DiGraph, list[Flow]]:
    """A ring with chords, and flows between nodes of it."""
    source = random.Random(seed)
    nodes = 12
    made = nx.DiGraph()
    for node in range(nodes):
        made.add_edge(node, (node + 1) % nodes, capacity=source.uniform(1, 10))
    for _ in range(20):
        a, b = source.sample(range(nodes), 2)
        made.add_edge(a, b, capacity=source.uniform(1, 10))
    flows = []
    for index in range(25):
        a, b = source.sample(range(nodes), 2)
        flows.append(
            Flow(name=str(index), source=a, target=b, nbytes=source.uniform(1, 100))
        )  # fmt: skip
    return made, flows


@pytest.mark.parametrize("seed", range(20))
def test_predict_laws_each_flow_has_a_full_link_where_none_is_faster(seed: int) -> None:
    """A2. Goal: what makes rates max-min fair; and no link carries more than it can."""
    made, flows = any_network(seed)
    routes = [*routes_of(made, flows).values()]
    capacities = dict(nx.get_edge_attributes(made, "capacity"))
    rates = max_min_rates(routes, capacities)
    loads: dict[Any, float] = defaultdict(float)
    fastest: dict[Any, float] = defaultdict(float)
    for route, rate in zip(routes, rates, strict=True):
        for link, share in route.items():
            loads[link] += rate * share
            fastest[link] = max(fastest[link], rate)
    assert all(load <= capacities[link] * (1 + 1e-9) for link, load in loads.items())
    for route, rate in zip(routes, rates, strict=True):
        assert any(
            loads[link] == pytest.approx(capacities[link])
            and rate == pytest.approx(fastest[link])
            for link in route
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_predict_laws_links_carry_no_more_than_they_can(seed: int) -> None:
    """A1. Goal: until the last of its flows has been sent, a link carries all that routes put on
    it, never faster than it can; no flow arrives sooner than alone."""
    made, flows = any_network(seed)
    found, routes = arrivals_s(made, flows), routes_of(made, flows)
    assert list(found.values()) == sorted(found.values())
    for link, capacity in nx.get_edge_attributes(made, "capacity").items():
        own = [(each, routes[each.name].get(link, 0.0)) for each in flows]
        last_s = max((found[each.name] for each, share in own if share), default=0.0)
        assert sum(share * each.nbytes for each, share in own) <= capacity * last_s * (1 + 1e-9)
    for each in flows:
        assert found[each.name] >= end_s(made, [each]) * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_predict_laws_more_capacity_is_never_slower(seed: int) -> None:
    """Goal: twice the capacity everywhere halves all times; and many flows through one link end no
    later if that one is faster."""
    made, flows = any_network(seed)
    twice = made.copy()
    for *_, data in twice.edges(data=True):
        data["capacity"] *= 2
    slow, fast = (arrivals_s(each, flows) for each in (made, twice))
    assert {name: 2 * end for name, end in fast.items()} == pytest.approx(slow)
    many = [replace(each, source="a", target="b") for each in flows]
    one, more = (arrivals_s(links(ab=each), many) for each in (5.0, 6.0))
    assert all(more[name] <= one[name] for name in one)


def test_a_faster_link_may_slow_a_flow_elsewhere() -> None:
    """Goal: what the docstring says: who gets onto a shared link faster takes more of it."""
    flows = [flow("a", "c", 1000), flow("b", "c", 100)]
    slow, fast = (arrivals_s(links(ab=each, bc=10.0), flows) for each in (1.0, 10.0))
    assert fast["bc"] > slow["bc"]
    assert fast["ac"] < slow["ac"]


def test_predict_laws_no_flows() -> None:
    """Goal: sizes of none."""
    assert arrivals_s(links(ab=10.0), []) == {}
    assert max_min_rates([{}], {}) == [float("inf")]


# ---------------------------------------------------------------------- topologies


@pytest.mark.parametrize(("topology", "group"), TOPOLOGIES, ids=lambda each: type(each).__name__)
def test_predict_laws_flows_take_what_graphs_give(topology: Any, group: RankGroup) -> None:
    """Goal: equal flows from each rank to its next take as long as the slowest of them at the
    rate that the closed form of the graph gives to all."""
    made = graph(topology)
    pairs = neighbour_flows(group, topology.endpoints)
    flows = [Flow(name=str(index), source=source, target=target, nbytes=1e9)
             for index, (source, target) in enumerate(pairs)]  # fmt: skip
    assert end_s(made, flows) == pytest.approx(1e9 / rate_of_flows(made, pairs))


def test_predict_laws_hashed_paths_meet() -> None:
    """A1. Goal: flows that each take one of the shortest paths meet on links, and are no faster
    than those that take all of them; the same name takes the same path."""
    topology, group = TOPOLOGIES[0]
    made = graph(topology)
    pairs = neighbour_flows(group, topology.endpoints)
    spread = [Flow(name=str(index), source=source, target=target, nbytes=1e9)
              for index, (source, target) in enumerate(pairs)]  # fmt: skip
    hashed = [
        replace(each, path=hashed_paths(made, each.source, each.target, [each.name])[0])
        for each in spread
    ]  # fmt: skip
    assert end_s(made, hashed) > 1.5 * end_s(made, spread)
    assert hashed[0].path == hashed_paths(made, host(0), host(4), ["0"])[0]


def test_predict_laws_all_to_one_share_its_port() -> None:
    """Goal: 15 hosts that send to one take 15 times as long as one of them."""
    made = graph(TOPOLOGIES[0][0])
    flows = [Flow(name=str(each), source=host(each), target=host(0), nbytes=1e9)
             for each in range(1, 16)]  # fmt: skip
    rate = NETWORK.rate * NETWORK.efficiency
    assert end_s(made, flows) == pytest.approx(15e9 / rate)


def test_bad_prediction_flows() -> None:
    """Goal: a flow that cannot arrive names itself."""
    with pytest.raises(ConfigError, match=r"flow ba: no way from b to a"):
        arrivals_s(links(ab=10.0, bc=10.0), [flow("b", "a", 1)])
