"""Networks as graphs, switch by switch and link by link, where they are small.

Nodes are ("host", endpoint), ("switch", rail, tier, number) and ("domain", number); an edge goes
one way and has a `capacity` in bytes per second and `links`, the number of cables (none within a
domain). The closed forms of `topologies.py` count what these graphs have, and their rates are those
that flows get here: the tests compare them (`tests/unit/graph_flows.py`).

    W1  wiring    within a block the uplinks of its switches go to those above one after the other,
                  in turn; so each has its share, and none more than its ports
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeAlias

import networkx as nx

from luwu.base.errors import ConfigError
from luwu.predict.networks.rank_groups import RankGroup, port_rate
from luwu.predict.networks.topologies import AggregationTree, Clos, RailOnly

Node: TypeAlias = tuple[Hashable, ...]
ENDPOINTS_MAX: Final = 4096
"""Beyond, a graph takes seconds and more; the closed forms do not."""


def host(endpoint: int) -> Node:
    """The node of an endpoint."""
    return ("host", endpoint)


def graph(topology: Clos | RailOnly | AggregationTree) -> nx.DiGraph:
    """A network as a graph with directed capacities. Raises ConfigError if it is large."""
    if topology.endpoints > ENDPOINTS_MAX:
        raise ConfigError(
            f"endpoints: a graph of {topology.endpoints} is too large; up to {ENDPOINTS_MAX} fit, "
            "and the closed forms take any"
        )
    made = nx.DiGraph()
    made.add_nodes_from(host(each) for each in range(topology.endpoints))
    if isinstance(topology, AggregationTree):
        _wire_tree(made, topology)
    elif isinstance(topology, Clos):
        _wire_clos(made, topology, 0, list(range(topology.endpoints)))
    else:
        _wire_rails(made, topology)
    return made


def _connect(made: nx.DiGraph, a: Node, b: Node, rate: float, links: int = 1) -> None:
    """One more link, both directions."""
    for ends in ((a, b), (b, a)):
        found = made.get_edge_data(*ends, default={"capacity": 0.0, "links": 0})
        made.add_edge(*ends, capacity=found["capacity"] + rate, links=found["links"] + links)


def _wire_clos(made: nx.DiGraph, clos: Clos, rail: int, endpoints: list[int]) -> None:
    """The endpoints of a rail, tier by tier (W1)."""
    rate, tiers = port_rate(clos.network), clos.tiers
    below = [host(each) for each in endpoints]
    if not clos.tier_count:
        return
    if not tiers:
        _wire_above(made, [below], [1], rail, 1, rate)
        return
    leaves = _leaves(clos, below)
    above = _wire_above(made, leaves, [1] * len(leaves), rail, 1, rate)
    switches_in_block = 1
    for number, tier in enumerate(tiers):
        last = number == len(tiers) - 1
        down = clos.radix if last else tiers[number + 1].down
        size = len(above) if last else down * switches_in_block
        blocks = [above[at : at + size] for at in range(0, len(above), size)]
        uplinked = [[each for each in block for _ in range(tier.up)] for block in blocks]
        counts = [-(-len(block) // down) for block in uplinked]
        above = _wire_above(made, uplinked, counts, rail, number + 2, rate)
        switches_in_block *= tier.up


def _leaves(clos: Clos, below: list[Node]) -> list[list[Node]]:
    """Endpoints by the switch that they are on: hosts in units, one switch a rail in each."""
    down, rails = clos.tiers[0].down, clos.rails
    units = [below[at : at + down * rails] for at in range(0, len(below), down * rails)]
    return [unit[rail::rails] for unit in units for rail in range(rails)]


def _wire_above(
    made: nx.DiGraph, blocks: list[list[Node]], counts: list[int], rail: int, tier: int, rate: float
) -> list[Node]:
    """Switches above each block, to which its links go in turn; returns them."""
    found: list[Node] = []
    for links, count in zip(blocks, counts, strict=True):
        switches: list[Node] = [("switch", rail, tier, len(found) + each) for each in range(count)]
        for index, below in enumerate(links):
            _connect(made, below, switches[index % count], rate)
        found += switches
    return found


def _wire_rails(made: nx.DiGraph, network: RailOnly) -> None:
    """Each rail a network of its own; the domains forward between them."""
    for rail in range(network.domain):
        _wire_clos(made, network.rail, rail, list(range(rail, network.endpoints, network.domain)))
    for endpoint in range(network.endpoints):
        domain: Node = ("domain", endpoint // network.domain)
        _connect(made, host(endpoint), domain, network.domain_rate, links=0)


def _wire_tree(made: nx.DiGraph, tree: AggregationTree) -> None:
    """Each switch with its children, and the optimizer nodes on the topmost one."""
    rate = port_rate(tree.network)
    below = [host(each) for each in range(tree.endpoints)]
    for tier in range(tree.tier_count):
        blocks = [below[at : at + tree.fan_in] for at in range(0, len(below), tree.fan_in)]
        below = _wire_above(made, blocks, [1] * len(blocks), 0, tier + 1, rate)
    for node in range(tree.optimizer_nodes):
        _connect(made, below[0], ("optimizer", node), rate)


# ---------------------------------------------------------------------- flows


def neighbour_flows(group: RankGroup, endpoints: int) -> list[tuple[Node, Node]]:
    """Flows of every group of this form, from each rank to its next. Raises ConfigError if groups
    do not take all endpoints.
    """
    return [
        (host(ranks[index]), host(ranks[(index + 1) % group.size]))
        for ranks in groups_of(group, endpoints)
        for index in range(group.size)
    ]


def groups_of(group: RankGroup, endpoints: int) -> list[range]:
    """All groups of a form. Raises ConfigError where they do not take all endpoints."""
    extent = group.size * group.stride
    if endpoints % extent:
        raise ConfigError(
            f"group: {group.size} ranks, every {group.stride}., do not divide {endpoints} "
            f"endpoints; a divisor of {endpoints} for size x stride fits"
        )
    return [
        range(start + first, start + extent, group.stride)
        for start in range(0, endpoints, extent)
        for first in range(group.stride)
    ]
