"""Flows that share links: each has its max-min fair rate, newly found when one ends.

    A1  route      over all shortest paths, by the capacities that lie there, or over one path;
                   of what a flow sends, a link of its route carries a share
    A2  fair       all rates rise together until a link is full; its flows stay there, the others
                   go on (progressive filling). So each flow has a full link on which none is faster
    A3  one flow   bytes / min(capacity / share) over the links of its route

All flows begin at once; links go one way. More capacity on all links speeds up all flows in
proportion. More capacity on one link may slow others down: flows that become faster there take a
fair share of links that others had alone.
Sources: Bertsekas and Gallager, Data Networks, 2nd ed., 6.5 (A2); derived.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import networkx as nx

from luwu.base.errors import ConfigError

Node: TypeAlias = Hashable
Link: TypeAlias = tuple[Node, Node]
Route: TypeAlias = Mapping[Link, float]
"""Link -> the share of a flow that it carries."""
SAME = 1e-12
"""Levels at which links are full count as one if they differ by less, relatively: rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Bytes from a node to another."""

    name: str
    source: Node
    target: Node
    nbytes: float
    path: tuple[Node, ...] | None = None
    """All nodes on its way; None: all shortest paths share it."""


# ---------------------------------------------------------------------- routes and rates


def routes_of(graph: nx.DiGraph, flows: Iterable[Flow]) -> dict[str, Route]:
    """The links of each flow, and its share on each (A1), by the flow's name.

    Distances to a target are found once for all flows to it. Raises ConfigError where there is no
    way.
    """
    backward, found = graph.reverse(copy=False), dict[str, Route]()
    distances: dict[Node, Mapping[Node, int]] = {}
    for flow in flows:
        if flow.path is not None:
            found[flow.name] = dict.fromkeys(zip(flow.path, flow.path[1:], strict=False), 1.0)
            continue
        if flow.target not in distances:
            distance = nx.single_source_shortest_path_length(backward, flow.target)
            distances[flow.target] = distance
        found[flow.name] = _spread(graph, flow, distances[flow.target])
    return found


def _spread(graph: nx.DiGraph, flow: Flow, distance: Mapping[Node, int]) -> Route:
    """Over all shortest paths; at each node by the capacities that lead nearer. `distance`: links
    from each node to the target."""
    if flow.source not in distance:
        raise ConfigError(f"flow {flow.name}: no way from {flow.source} to {flow.target}")
    shares: dict[Link, float] = {}
    level = {flow.source: 1.0}
    for left in range(distance[flow.source] - 1, -1, -1):
        below: dict[Node, float] = defaultdict(float)
        for node, amount in level.items():
            nearer = [each for each in graph.successors(node) if distance.get(each) == left]
            whole = sum(graph.edges[node, each]["capacity"] for each in nearer)
            for each in nearer:
                shares[node, each] = amount * graph.edges[node, each]["capacity"] / whole
                below[each] += shares[node, each]
        level = below
    return shares


def hashed_paths(
    graph: nx.DiGraph, source: Node, target: Node, names: Sequence[str]
) -> list[tuple[Node, ...]]:
    """For each name one of all shortest paths, by a hash of it: as switches choose (ECMP)."""
    paths = sorted(nx.all_shortest_paths(graph, source, target), key=str)
    return [tuple(paths[_hash(name) % len(paths)]) for name in names]


def _hash(name: str) -> int:
    """Not a CRC: of names that differ in a digit it finds paths that hardly meet."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def max_min_rates(routes: Sequence[Route], capacities: Mapping[Link, float]) -> list[float]:
    """Bytes a second of each flow (A2); without limit where it takes no link."""
    rates = [math.inf] * len(routes)
    on_link: dict[Link, set[int]] = defaultdict(set)
    for index, route in enumerate(routes):
        for link in route:
            on_link[link].add(index)
    free = {link: capacities[link] for link in on_link}
    rising = {link: sum(routes[index][link] for index in on_link[link]) for link in on_link}
    changed = set(on_link)
    while on_link:
        level = min(free[link] / rising[link] for link in on_link)
        full = [link for link in on_link if free[link] / rising[link] <= level * (1 + SAME)]
        done = {index for link in full for index in on_link[link]}
        for index in sorted(done):
            rates[index] = level
            for link in routes[index]:
                if link in on_link:
                    on_link[link].discard(index)
                    changed.add(link)
                    free[link] -= level * routes[index][link]
        for link in [link for link, flows in on_link.items() if not flows]:
            del on_link[link]
        # summed anew, so that rounding does not pile up
        for link in changed & on_link.keys():
            rising[link] = sum(routes[index][link] for index in sorted(on_link[link]))
        changed.clear()
    return rates


# ---------------------------------------------------------------------- playing


def arrivals_s(graph: nx.DiGraph, flows: Sequence[Flow]) -> dict[str, float]:
    """Seconds until all of each flow has been sent. Raises ConfigError where there is no way."""
    capacities = nx.get_edge_attributes(graph, "capacity")
    routes = routes_of(graph, flows)
    left = {flow.name: flow.nbytes for flow in flows}
    now, found = 0.0, dict[str, float]()
    while left:
        rates = dict(zip(left, max_min_rates([routes[n] for n in left], capacities), strict=True))
        next_s = min(left[name] / rates[name] for name in left)
        now += next_s
        for name in list(left):
            if left[name] / rates[name] <= next_s * (1 + SAME):
                found[name] = now
                del left[name]
            else:
                left[name] -= rates[name] * next_s
    return found


def link_name(link: Link) -> str:
    """Name of a link, for people."""
    return " -> ".join(_node_name(each) for each in link)


def _node_name(node: Any) -> str:
    return " ".join(map(str, node)) if isinstance(node, tuple) else str(node)
