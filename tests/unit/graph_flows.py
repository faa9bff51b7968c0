"""What graphs of networks have and let through, to compare closed forms with.

W2  flows     each is spread over all shortest paths, by the links that lie there
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import networkx as nx

from luwu.predict.networks.rank_groups import Inventory
from luwu.predict.networks.topology_graphs import Node


def inventory_of(made: nx.DiGraph) -> Inventory:
    """What a graph is made of."""
    switches = sum(node[0] == "switch" for node in made)
    return Inventory(switches, sum(links for _, _, links in made.edges.data("links")) // 2)


def rate_of_flows(
    made: nx.DiGraph, flows: Iterable[tuple[Node, Node]], weights: Iterable[float] | None = None
) -> float:
    """Bytes a second of each flow (times its weight) if all run at once (W2).

    Raises: ValueError where there is no way, or no flow.
    """
    by_target: dict[Node, dict[Node, float]] = defaultdict(lambda: defaultdict(float))
    pairs = list(flows)
    for (source, target), weight in zip(pairs, weights or [1.0] * len(pairs), strict=True):
        by_target[target][source] += weight
    backward, loads = made.reverse(copy=False), defaultdict[tuple[Node, Node], float](float)
    for target, sources in by_target.items():
        distance = nx.single_source_shortest_path_length(backward, target)
        for source in sources:
            if source not in distance:
                raise ValueError(f"flows: there is no way from {source} to {target}")
        _load(made, distance, sources, loads)
    if not loads:
        raise ValueError("flows: none goes over a link; give at least one between two nodes")
    return float(min(made.edges[edge]["capacity"] / load for edge, load in loads.items()))


def _load(
    made: nx.DiGraph,
    distance: dict[Node, int],
    sources: dict[Node, float],
    loads: dict[tuple[Node, Node], float],
) -> None:
    """Add what the flows to one target put on each edge, from the furthest node on."""
    amounts = defaultdict(float, sources)
    by_distance: dict[int, set[Node]] = defaultdict(set)
    for source in sources:
        by_distance[distance[source]].add(source)
    for left in range(max(by_distance), 0, -1):
        for node in sorted(by_distance[left], key=str):
            nearer = [each for each in made.successors(node) if distance.get(each) == left - 1]
            whole = sum(made.edges[node, each]["capacity"] for each in nearer)
            for each in nearer:
                part = amounts[node] * made.edges[node, each]["capacity"] / whole
                loads[node, each] += part
                amounts[each] += part
                by_distance[left - 1].add(each)


def bisection_of(made: nx.DiGraph, one_half: Iterable[Node], other: Iterable[Node]) -> float:
    """Bytes a second that can go from one half to the other: the maximum flow."""
    joined = made.copy()
    for node in one_half:
        joined.add_edge("source", node)  # no capacity: without limit
    for node in other:
        joined.add_edge(node, "sink")
    return float(nx.maximum_flow_value(joined, "source", "sink"))
