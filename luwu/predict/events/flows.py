"""Flows that share links: each has its max-min fair rate, newly found when one begins or ends.

    A1  route      over all shortest paths, by the capacities that lie there, or over one path;
                   of what a flow sends, a link of its route carries a share
    A2  fair       all rates rise together until a link is full; its flows stay there, the others
                   go on (progressive filling). So each flow has a full link on which none is faster
    A3  one flow   latency + bytes / min(capacity / share) over the links of its route

A flow's last byte arrives `latency_s` after it has left; links are in use until it has left. Links
go one way; what takes no link (to itself) takes the latency alone. A record has a span of each flow
("flow NAME") from its beginning to its arrival, and of each link as long as its load stays the
same, with what it carried.

More capacity on all links speeds up all flows in proportion. More capacity on one link may slow
others down: flows that become faster there take a fair share of links that others had alone.
Sources: Bertsekas and Gallager, Data Networks, 2nd ed., 6.5 (A2); derived.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import networkx as nx
import simpy

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.predict.events.engines import Process, Record, Span

Node: TypeAlias = Hashable
Link: TypeAlias = tuple[Node, Node]
Route: TypeAlias = Mapping[Link, float]
"""Link -> the share of a flow that it carries."""
SAME = 1e-12
"""Levels at which links are full count as one if they differ by less, relatively: rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Bytes from a node to another. Raises ConfigError."""

    name: str
    source: Node
    target: Node
    nbytes: float
    start_s: float = 0.0
    latency_s: float = 0.0
    path: tuple[Node, ...] | None = None
    """All nodes on its way; None: all shortest paths share it."""

    def __post_init__(self) -> None:
        for key in ("nbytes", "start_s", "latency_s"):
            value = getattr(self, key)
            if not 0 <= value < math.inf:  # also catches NaN
                raise ConfigError(
                    f"flow {self.name}: {key} is {value!r}; a finite number from 0 on fits"
                )


# ---------------------------------------------------------------------- routes and rates


def route_of(graph: nx.DiGraph, flow: Flow) -> Route:
    """The links of a flow, and its share on each (A1). Raises ConfigError where there is no way."""
    for node in (flow.source, flow.target, *(flow.path or ())):
        if node not in graph:
            known = {str(each): each for each in graph}
            raise ConfigError(
                f"flow {flow.name}: there is no node {node}{suggestion(str(node), known)}"
            )
    if flow.path is None:
        return _spread(graph, flow)
    ends = (flow.path[0], flow.path[-1]) if flow.path else ()
    links = list(zip(flow.path, flow.path[1:], strict=False))
    if ends != (flow.source, flow.target) or not all(graph.has_edge(*link) for link in links):
        raise ConfigError(
            f"flow {flow.name}: path is not a way from {flow.source} to {flow.target}; "
            f"{hashed_path(graph, flow.source, flow.target, flow.name)} would be one"
        )
    shares: dict[Link, float] = defaultdict(float)
    for link in links:
        shares[link] += 1.0
    return dict(shares)


def _spread(graph: nx.DiGraph, flow: Flow) -> Route:
    """Over all shortest paths; at each node by the capacities that lead nearer."""
    backward = graph.reverse(copy=False)
    distance = nx.single_source_shortest_path_length(backward, flow.target)
    if flow.source not in distance:
        raise ConfigError(f"flow {flow.name}: no way from {flow.source} to {flow.target}")
    shares: dict[Link, float] = {}
    level = {flow.source: 1.0}
    for left in range(distance[flow.source] - 1, -1, -1):
        below: dict[Node, float] = defaultdict(float)
        for node, amount in level.items():
            nearer = [each for each in graph.successors(node) if distance.get(each) == left]
            whole = sum(_capacity(graph, (node, each)) for each in nearer)
            for each in nearer:
                shares[node, each] = amount * _capacity(graph, (node, each)) / whole
                below[each] += shares[node, each]
        level = below
    return shares


def hashed_path(graph: nx.DiGraph, source: Node, target: Node, name: str) -> tuple[Node, ...]:
    """One of all shortest paths, by a hash of a name: as switches choose (ECMP). Raises
    ConfigError."""
    return hashed_paths(graph, source, target, [name])[0]


def hashed_paths(
    graph: nx.DiGraph, source: Node, target: Node, names: Sequence[str]
) -> list[tuple[Node, ...]]:
    """The same of each name; which paths there are is found once. Raises ConfigError."""
    try:
        paths = sorted(nx.all_shortest_paths(graph, source, target), key=str)
    except (nx.NetworkXNoPath, nx.NodeNotFound) as exc:
        raise ConfigError(f"flow {names[0]}: no way from {source} to {target}") from exc
    return [tuple(paths[_hash(name) % len(paths)]) for name in names]


def _hash(name: str) -> int:
    """Not a CRC: of names that differ in a digit it finds paths that hardly meet."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _capacity(graph: nx.DiGraph, link: Link) -> float:
    value = graph.edges[link].get("capacity")
    if value is None or not 0 < value < math.inf:
        raise ConfigError(
            f"link {link[0]} -> {link[1]}: capacity is {value!r}; bytes per second above 0 fit"
        )
    return float(value)


def max_min_rates(routes: Sequence[Route], capacities: Mapping[Link, float]) -> list[float]:
    """Bytes a second of each flow (A2); without limit where it takes no link."""
    rates = [math.inf] * len(routes)
    on_link: dict[Link, set[int]] = defaultdict(set)
    for index, route in enumerate(routes):
        for link in route:
            on_link[link].add(index)
    free = {link: capacities[link] for link in on_link}
    rising = {link: sum(routes[index][link] for index in on_link[link]) for link in on_link}
    while on_link:
        level = min(free[link] / rising[link] for link in on_link)
        full = [link for link in on_link if free[link] / rising[link] <= level * (1 + SAME)]
        done = {index for link in full for index in on_link[link]}
        for index in sorted(done):
            rates[index] = level
            for link in routes[index]:
                if link in on_link:
                    on_link[link].discard(index)
                    free[link] -= level * routes[index][link]
        for link in [link for link, flows in on_link.items() if not flows]:
            del on_link[link]
        # summed anew, so that rounding does not pile up
        rising = {link: sum(routes[i][link] for i in sorted(on_link[link])) for link in on_link}
    return rates


# ---------------------------------------------------------------------- playing


@dataclass(slots=True, eq=False)
class _Moving:
    """A flow that has bytes to send."""

    flow: Flow
    route: Route
    left: float
    sent: simpy.Event
    rate: float = 0.0


class FlowNetwork:
    """Links with flows on them; processes yield from `transfer`."""

    def __init__(self, env: simpy.Environment, record: Record, graph: nx.DiGraph) -> None:
        self._env, self._record, self._graph = env, record, graph
        self._capacities = {link: _capacity(graph, link) for link in graph.edges}
        self._moving: list[_Moving] = []
        self._since_s = env.now
        self._turn = 0
        """Counts changes: a timer of an earlier one is out of date."""

    def transfer(self, flow: Flow) -> Process:
        """Wait for its beginning, send all of it, and wait until it has arrived."""
        route = route_of(self._graph, flow)
        if flow.start_s > self._env.now:
            yield self._env.timeout(flow.start_s - self._env.now)
        start_s = self._env.now
        if route and flow.nbytes:
            moving = _Moving(flow, route, flow.nbytes, self._env.event())
            self._advance()
            self._moving.append(moving)
            self._change()
            yield moving.sent
        if flow.latency_s:
            yield self._env.timeout(flow.latency_s)
        self._record.spans.append(
            Span(f"flow {flow.name}", flow.name, start_s, self._env.now, flow.nbytes)
        )

    def _change(self) -> None:
        """Share anew, once all that happens at this time has happened."""
        self._turn += 1
        self._env.process(self._share(self._turn))

    def _share(self, turn: int) -> Process:
        yield self._env.timeout(0)
        if turn != self._turn or not self._moving:
            return
        found = max_min_rates([each.route for each in self._moving], self._capacities)
        for each, rate in zip(self._moving, found, strict=True):
            each.rate = rate
        next_s = min(each.left / each.rate for each in self._moving)
        ending = {each for each in self._moving if each.left / each.rate <= next_s * (1 + SAME)}
        yield self._env.timeout(next_s)
        if turn != self._turn:
            return
        self._advance(ending)
        for each in [each for each in self._moving if each in ending]:
            self._moving.remove(each)
            each.sent.succeed()
        self._change()

    def _advance(self, ending: Collection[_Moving] = ()) -> None:
        """Record the bytes sent since the last change; all remaining ones of flows that end."""
        now = self._env.now
        carried: dict[Link, float] = defaultdict(float)
        names: dict[Link, list[str]] = defaultdict(list)
        for each in self._moving:
            nbytes = each.left if each in ending else each.rate * (now - self._since_s)
            if not nbytes:
                continue
            each.left -= nbytes
            for link, share in each.route.items():
                carried[link] += nbytes * share
                names[link].append(each.flow.name)
        for link, nbytes in carried.items():
            job = ", ".join(names[link])
            self._record.spans.append(Span(link_name(link), job, self._since_s, now, nbytes))
        self._since_s = now


def link_name(link: Link) -> str:
    """Name of a link in the spans of a record."""
    return " -> ".join(_node_name(each) for each in link)


def _node_name(node: Any) -> str:
    return " ".join(map(str, node)) if isinstance(node, tuple) else str(node)


def play_flows(graph: nx.DiGraph, flows: Iterable[Flow]) -> Record:
    """Play flows to the last arrival. Raises ConfigError for those that cannot be."""
    env, record = simpy.Environment(), Record()
    network = FlowNetwork(env, record, graph)
    names: set[str] = set()
    for flow in flows:
        if flow.name in names:
            raise ConfigError(f"flow {flow.name}: two of this name; a name for each would fit")
        names.add(flow.name)
        route_of(graph, flow)
        env.process(network.transfer(flow))
    env.run()
    return record


def arrivals_s(record: Record) -> dict[str, float]:
    """Arrival time of the last byte, per flow."""
    return {
        span.job: span.end_s for span in record.spans if span.engine == f"flow {span.job}"
    }  # fmt: skip
