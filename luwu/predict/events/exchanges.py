"""Exchanges of a step, flow by flow through a network that is known link by link.

    A4  flows      of every group at once: each rank sends what its port sends to the next rank; of
                   all-to-all, an equal part to every other one
    A5  spread     over all shortest paths (A1), as closed forms have it: then this is S16
    A6  hashed     each flow takes one of the shortest paths, by a hash, as switches choose (ECMP);
                   flows that meet on a link share it, and all wait for the last one

Several channels between two ranks are as many flows of equal parts, each hashed separately. Only
bytes take time here; there is no latency. Data that switches sum or copy (push, pull) is not an
end-to-end flow.
Sources: `flows.py`, `topology_graphs.py`; derived.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import networkx as nx

from luwu.base.errors import ConfigError
from luwu.predict.events.flows import Flow, Link, arrivals_s, hashed_paths, link_name
from luwu.predict.networks.choice import Built
from luwu.predict.networks.on_topology import Exchange
from luwu.predict.networks.rank_groups import port_rate
from luwu.predict.networks.topologies import Clos, RailOnly
from luwu.predict.networks.topology_graphs import Node, graph, groups_of, host, neighbour_flows

FLOWS_MAX: Final = 8192
"""More take minutes."""
_SUMMED: Final = ("push", "pull", "in_network_all_reduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedExchange:
    """One kind of exchange of a step, of all groups at once. Seconds are of its bytes."""

    flows: int
    closed_s: float
    spread_s: float
    hashed_s: float
    busiest: str
    """The link that most hashed flows go over, counted by bytes over its rate."""


def play_exchanges(
    built: Built, exchanges: dict[str, Exchange], ranks: int, channels: int = 1
) -> dict[str, PlayedExchange]:
    """Play each exchange alone. Raises ConfigError for networks that have no graph here, and where
    there is nothing to play."""
    if not isinstance(built, (Clos, RailOnly)):
        raise ConfigError(
            "topology.kind: flows are played on single-switch, clos, rail-optimised and rail-only; "
            "the others are closed forms"
        )
    if channels < 1:
        raise ConfigError(f"channels: {channels} between two ranks; 1 or more fit")
    played = {name: each for name, each in exchanges.items() if each.collective not in _SUMMED}
    if not played:
        said = ", ".join(f"{name} ({each.collective})" for name, each in exchanges.items())
        raise ConfigError(
            "system: nothing goes from rank to rank over this network: "
            f"{said or 'all exchanges stay in fast domains'}"
        )
    made = graph(built)
    return {
        name: _played(built, made, name, each, ranks, channels) for name, each in played.items()
    }


def _played(
    built: Built, made: nx.DiGraph, name: str, exchange: Exchange, ranks: int, channels: int
) -> PlayedExchange:
    pairs = list(_pairs(exchange, ranks))
    if len(pairs) * channels > FLOWS_MAX:
        raise ConfigError(
            f"{name}: {len(pairs) * channels} flows take too long to play; up to {FLOWS_MAX} fit: "
            "fewer devices or channels"
        )
    rate = min(exchange.connection(built).rate, port_rate(built.network))
    nbytes = exchange.port_bytes * ranks / len(pairs)
    spread = [
        Flow(name=f"{name} {index}", source=source, target=target, nbytes=nbytes)
        for index, (source, target) in enumerate(pairs)
    ]
    hashed = [flow for each in spread for flow in _channels(made, each, channels)]
    return PlayedExchange(
        flows=len(hashed), closed_s=exchange.port_bytes / rate,
        spread_s=max(arrivals_s(made, spread).values()),
        hashed_s=max(arrivals_s(made, hashed).values()),
        busiest=_busiest(made, hashed),
    )  # fmt: skip


def _pairs(exchange: Exchange, ranks: int) -> Iterator[tuple[Node, Node]]:
    """Pairs of sender and receiver (A4)."""
    if exchange.collective != "all_to_all":
        yield from neighbour_flows(exchange.group, ranks)
        return
    for group in groups_of(exchange.group, ranks):
        for source in group:
            yield from ((host(source), host(target)) for target in group if target != source)


def _channels(made: nx.DiGraph, whole: Flow, channels: int) -> list[Flow]:
    """A flow in so many equal parts, each on a path of its own (A6)."""
    names = [f"{whole.name} {channel}" for channel in range(channels)]
    paths = hashed_paths(made, whole.source, whole.target, names)
    return [
        replace(whole, name=name, nbytes=whole.nbytes / channels, path=path)
        for name, path in zip(names, paths, strict=True)
    ]


def _busiest(made: nx.DiGraph, flows: list[Flow]) -> str:
    loads: dict[Link, float] = defaultdict(float)
    for flow in flows:
        for link in pairwise(flow.path or ()):
            loads[link] += flow.nbytes / made.edges[link]["capacity"]
    return link_name(max(loads, key=lambda link: (loads[link], str(link))))
