"""Flows that share links: laws of fair rates, of bytes and of time."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx as nx
import pytest
import simpy

from luwu.base.errors import ConfigError
from luwu.predict.events.engines import Process, Record
from luwu.predict.events.flows import (
    Flow,
    FlowNetwork,
    arrivals_s,
    hashed_path,
    link_name,
    max_min_rates,
    play_flows,
    route_of,
)
from luwu.predict.hardware.hardware import Network
from luwu.predict.model.collectives import Path, ring_all_gather
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


# ---------------------------------------------------------------------- one, and two


def test_predict_laws_one_flow_is_its_closed_form() -> None:
    """A3. Goal: latency + bytes over the slowest link on its way."""
    made = links(ab=40.0, bc=10.0, cd=20.0)
    assert play_flows(made, [flow("a", "d", 200, latency_s=3)]).end_s == pytest.approx(23)
    wide = links(ab=40.0, bd=30.0, ac=40.0, cd=10.0)  # half on each way: the 10 binds
    assert play_flows(wide, [flow("a", "d", 200)]).end_s == pytest.approx(10)


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_predict_laws_equal_flows_share(count: int) -> None:
    """A2. Goal: n equal flows through a link take n times as long, and end at once."""
    flows = [flow("a", "b", 50, name=str(each)) for each in range(count)]
    found = arrivals_s(play_flows(links(ab=10.0), flows))
    assert len(found) == count
    assert list(found.values()) == pytest.approx([5 * count] * count)


def test_predict_laws_rates_change_when_flows_begin_and_end() -> None:
    """A2. Goal: what ends leaves its share to the others; what comes takes one."""
    made = links(ab=100.0)
    both = [flow("a", "b", 100, name="short"), flow("a", "b", 300, name="long")]
    assert arrivals_s(play_flows(made, both)) == pytest.approx({"short": 2, "long": 4})
    late = [both[1], replace(both[0], start_s=2.5)]
    assert arrivals_s(play_flows(made, late)) == pytest.approx({"long": 3.5, "short": 4})
    apart = [both[1], replace(both[0], start_s=10)]
    assert arrivals_s(play_flows(made, apart)) == pytest.approx({"long": 3, "short": 11})


def test_predict_laws_rates_of_the_textbook() -> None:
    """A2. Goal: a long way and two short ones: the first link's two get halves, and who is alone
    with what is left of the second has all of it."""
    made = links(ab=10.0, bc=30.0)
    routes = [route_of(made, each) for each in
              (flow("a", "c", 1), flow("a", "b", 1), flow("b", "c", 1))]  # fmt: skip
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
            Flow(name=str(index), source=a, target=b, nbytes=source.uniform(1, 100),
                 start_s=source.choice([0.0, source.uniform(0, 20)]),
                 latency_s=source.uniform(0, 1))
        )  # fmt: skip
    return made, flows


@pytest.mark.parametrize("seed", range(20))
def test_predict_laws_each_flow_has_a_full_link_where_none_is_faster(seed: int) -> None:
    """A2. Goal: what makes rates max-min fair; and no link carries more than it can."""
    made, flows = any_network(seed)
    routes = [route_of(made, each) for each in flows]
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
def test_predict_laws_bytes_are_conserved_per_link(seed: int) -> None:
    """A1. Goal: each link carries what routes put on it, never faster than it can, and never in two
    spans at once; each flow arrives with all its bytes, no sooner than alone."""
    made, flows = any_network(seed)
    record = play_flows(made, flows)
    expected: dict[str, float] = defaultdict(float)
    for each in flows:
        for link, share in route_of(made, each).items():
            expected[link_name(link)] += share * each.nbytes
    for link, capacity in nx.get_edge_attributes(made, "capacity").items():
        spans = record.of(link_name(link))
        assert record.amount(link_name(link)) == pytest.approx(expected[link_name(link)])
        assert all(a.end_s <= b.start_s for a, b in pairwise(spans))
        for span in spans:
            assert span.amount <= capacity * (span.end_s - span.start_s) * (1 + 1e-6) + 1e-9
    found = arrivals_s(record)
    for each in flows:
        assert record.amount(f"flow {each.name}") == each.nbytes
        alone = play_flows(made, [each]).end_s
        assert found[each.name] >= alone * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_predict_laws_a_full_link_is_always_at_work(seed: int) -> None:
    """Goal: work conservation: as long as a flow has bytes, some link of its way is full."""
    made, flows = any_network(seed)
    record = play_flows(made, flows)
    full = [
        (span.start_s, span.end_s, link)
        for link, capacity in nx.get_edge_attributes(made, "capacity").items()
        for span in record.of(link_name(link))
        if span.amount == pytest.approx(capacity * (span.end_s - span.start_s))
    ]
    for each in flows:
        (span,) = record.of(f"flow {each.name}")
        route, at = route_of(made, each), span.start_s
        for start_s, end_s, link in sorted(full, key=lambda found: found[0]):
            if link in route and start_s <= at + 1e-9:
                at = max(at, end_s)
        assert at >= span.end_s - each.latency_s - 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_predict_laws_more_capacity_is_never_slower(seed: int) -> None:
    """Goal: twice the capacity everywhere halves all that is no latency, of flows that begin at
    once; and many flows through one link end no later if that one is faster."""
    made, flows = any_network(seed)
    at_once = [replace(each, start_s=0.0, latency_s=0.0) for each in flows]
    twice = made.copy()
    for *_, data in twice.edges(data=True):
        data["capacity"] *= 2
    slow, fast = (arrivals_s(play_flows(each, at_once)) for each in (made, twice))
    assert {name: 2 * end for name, end in fast.items()} == pytest.approx(slow)
    started, sooner = (arrivals_s(play_flows(each, flows)) for each in (made, twice))
    assert max(sooner.values()) <= max(started.values())
    many = [Flow(name=str(index), source="a", target="b", nbytes=each.nbytes, start_s=each.start_s)
            for index, each in enumerate(flows)]  # fmt: skip
    one, more = (arrivals_s(play_flows(links(ab=each), many)) for each in (5.0, 6.0))
    assert all(more[name] <= one[name] for name in one)


def test_a_faster_link_may_slow_a_flow_elsewhere() -> None:
    """Goal: what the docstring says: who gets onto a shared link faster takes more of it."""
    flows = [flow("a", "c", 1000), flow("b", "c", 100)]
    slow, fast = (arrivals_s(play_flows(links(ab=each, bc=10.0), flows)) for each in (1.0, 10.0))
    assert fast["bc"] > slow["bc"]
    assert fast["ac"] < slow["ac"]


def test_predict_laws_flows_of_no_size_and_to_oneself() -> None:
    """Goal: sizes of one and none: latency alone, and no link is in use."""
    made = links(ab=10.0)
    record = play_flows(made, [flow("a", "b", 0, latency_s=2), flow("a", "a", 5, latency_s=3)])
    assert arrivals_s(record) == {"ab": 2, "aa": 3}
    assert not record.of("a -> b")
    assert play_flows(made, []) == Record()
    assert max_min_rates([{}], {}) == [float("inf")]


def test_predict_laws_two_plays_are_identical() -> None:
    """Goal: the same record, span by span."""
    made, flows = any_network(3)
    assert play_flows(made, flows) == play_flows(made, flows)


# ---------------------------------------------------------------------- topologies


@pytest.mark.parametrize(("topology", "group"), TOPOLOGIES, ids=lambda each: type(each).__name__)
def test_predict_laws_flows_take_what_graphs_give(topology: Any, group: RankGroup) -> None:
    """Goal: equal flows from each rank to its next take as long as the slowest of them at the
    rate that the closed form of the graph gives to all."""
    made = graph(topology)
    pairs = neighbour_flows(group, topology.endpoints)
    flows = [Flow(name=str(index), source=source, target=target, nbytes=1e9)
             for index, (source, target) in enumerate(pairs)]  # fmt: skip
    record = play_flows(made, flows)
    assert record.end_s == pytest.approx(1e9 / rate_of_flows(made, pairs))


def test_predict_laws_hashed_paths_meet() -> None:
    """A1. Goal: flows that each take one of the shortest paths meet on links, and are no faster
    than those that take all of them; the same name takes the same path."""
    topology, group = TOPOLOGIES[0]
    made = graph(topology)
    pairs = neighbour_flows(group, topology.endpoints)
    spread = [Flow(name=str(index), source=source, target=target, nbytes=1e9)
              for index, (source, target) in enumerate(pairs)]  # fmt: skip
    hashed = [
        replace(each, path=hashed_path(made, each.source, each.target, each.name))
        for each in spread
    ]  # fmt: skip
    assert play_flows(made, hashed).end_s > 1.5 * play_flows(made, spread).end_s
    assert hashed[0].path == hashed_path(made, host(0), host(4), "0")


def test_predict_laws_all_to_one_share_its_port() -> None:
    """Goal: 15 hosts that send to one take 15 times as long as one of them."""
    made = graph(TOPOLOGIES[0][0])
    flows = [Flow(name=str(each), source=host(each), target=host(0), nbytes=1e9)
             for each in range(1, 16)]  # fmt: skip
    rate = NETWORK.rate * NETWORK.efficiency
    assert play_flows(made, flows).end_s == pytest.approx(15e9 / rate)


def test_predict_laws_a_ring_of_flows_is_its_closed_form() -> None:
    """N3. Goal: ranks that each send a part on as soon as they have it, in n - 1 rounds, over a
    network that gives each its port, take what the closed form says."""
    made, ranks, nbytes = graph(Clos(endpoints=8, radix=16, network=NETWORK)), 8, 1e9
    env, record = simpy.Environment(), Record()
    network = FlowNetwork(env, record, made)
    has = {(rank, step): env.event() for rank in range(ranks) for step in range(ranks)}

    def sends(rank: int) -> Process:
        for step in range(ranks - 1):
            yield has[rank, step]
            target = (rank + 1) % ranks
            yield from network.transfer(
                Flow(name=f"{rank} {step}", source=host(rank), target=host(target),
                     nbytes=nbytes / ranks, latency_s=5e-6)
            )  # fmt: skip
            has[target, step + 1].succeed()

    for rank in range(ranks):
        has[rank, 0].succeed()
        env.process(sends(rank))
    env.run()
    path = Path(latency_s=5e-6, rate=NETWORK.rate * NETWORK.efficiency)
    assert record.end_s == pytest.approx(ring_all_gather(ranks, nbytes, path))


# ---------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("flows", "said"),
    [
        ([flow("a", "d", 1)], r"flow ad: there is no node d"),
        ([flow("b", "a", 1)], r"flow ba: no way from b to a"),
        ([flow("a", "c", 1), flow("a", "c", 2)], r"flow ac: two of this name"),
        ([flow("a", "c", 1, path=("a", "b"))], r"path is not a way from a to c; \('a', 'b', 'c'\)"),
        ([flow("a", "c", 1, path=("a", "c"))], r"flow ac: path is not a way from a to c"),
        ([flow("a", "c", 1, path=("a", "x", "c"))], r"flow ac: there is no node x"),
    ],
)
def test_bad_prediction_flows(flows: list[Flow], said: str) -> None:
    """Goal: flows that cannot be name themselves and what would fit."""
    with pytest.raises(ConfigError, match=said):
        play_flows(links(ab=10.0, bc=10.0), flows)


def test_bad_prediction_flow_numbers() -> None:
    """Goal: bytes, times and capacities that are none."""
    for key, value in (("nbytes", -1.0), ("start_s", float("nan")), ("latency_s", float("inf"))):
        with pytest.raises(ConfigError, match=rf"flow ab: {key} is .*finite number from 0 on fits"):
            replace(flow("a", "b", 1), **{key: value})
    for capacity in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match=r"link a -> b: capacity is .*above 0 fit"):
            play_flows(links(ab=capacity), [flow("a", "b", 1)])
    bare = nx.DiGraph()
    bare.add_edge("a", "b")
    with pytest.raises(ConfigError, match=r"link a -> b: capacity is None"):
        play_flows(bare, [flow("a", "b", 1)])
    with pytest.raises(ConfigError, match=r"flow x: no way from b to a"):
        hashed_path(links(ab=1.0), "b", "a", "x")
    with pytest.raises(ConfigError, match=r"there is no node \('host', 99\); did you mean"):
        play_flows(graph(TOPOLOGIES[0][0]), [Flow(name="x", source=host(0), target=host(99),
                                                  nbytes=1)])  # fmt: skip
