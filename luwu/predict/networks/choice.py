"""`[topology]` of a question: how the network is built.

An endpoint is the port of one device. `taper` is a number, or a list from the hosts up. `rails` are
by default as many as devices share a fast domain. The network's rate and latency are those of
`network`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from luwu.base.errors import ConfigError
from luwu.predict.hardware import values
from luwu.predict.hardware.hardware import Network
from luwu.predict.networks.topologies import AggregationTree, Clos

Built: TypeAlias = Clos | AggregationTree
TREE: Final = "aggregation-tree"
RAILS: Final = "rail-optimised"
KINDS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "clos": ("radix", ("taper", "aggregates", "endpoints")),
    RAILS: ("radix", ("taper", "rails", "aggregates", "endpoints")),
    TREE: ("fan_in", ("endpoints",)),
}
"""The key that is needed, and those that may be left out."""
_PLACE: Final = "topology."


@dataclass(frozen=True, slots=True)
class TopologyChoice:
    """A network as it was asked for, before its ports and endpoints are known."""

    kind: str
    settings: Mapping[str, Any]
    """Those of its class that were given."""

    def build(self, network: Network, ranks: int, nodes: int = 0, *, domain: int) -> Built:
        """For so many ranks, `domain` of them in a fast domain, and optimizer nodes. Raises
        ConfigError where it has no place for them, or cannot be built."""
        needed = ranks if self.kind == TREE else ranks + nodes
        own = {"network": network, "endpoints": needed, **self.settings}
        if own["endpoints"] < needed:
            more = f" and {nodes} optimizer nodes" if needed > ranks else ""
            raise ConfigError(
                f"{_PLACE}endpoints: the network has {own['endpoints']} endpoints, but there are "
                f"{ranks} ranks{more}; {needed} or more fit"
            )
        if self.kind == TREE:
            return AggregationTree(**own, optimizer_nodes=nodes)
        if self.kind == RAILS:
            rails = own.setdefault("rails", domain)
            if "endpoints" not in self.settings:  # as many in each rail
                own["endpoints"] = -(-needed // rails) * rails
        return Clos(**own)


def make_topology(table: Mapping[str, Any]) -> TopologyChoice:
    """A choice of a table. Raises ConfigError, which names the key."""
    kind = table.get("kind")
    values.check_choice(f"{_PLACE}kind", kind, KINDS)
    assert isinstance(kind, str)
    needed, optional = KINDS[kind]
    values.check_keys(_PLACE, table, ("kind", needed, *optional), (needed,))
    settings = {key: _READERS.get(key, values.whole_of)(_PLACE, table, key)
                for key in (needed, *optional) if key in table}  # fmt: skip
    if "taper" in settings:
        settings["tapers"] = settings.pop("taper")
    return TopologyChoice(kind, settings)


def _ports(place: str, table: Mapping[str, Any], key: str) -> int:
    """The ports of a switch: at least one for each of two neighbours. Raises ConfigError."""
    count = values.whole_of(place, table, key)
    if count < 2:
        raise ConfigError(f"{place}{key}: {count} is not a count; a whole number from 2 on fits")
    return count


def _tapers(place: str, table: Mapping[str, Any], key: str) -> tuple[float, ...]:
    """One of the lowest tier, or a list from the hosts up. Raises ConfigError."""
    found = table[key] if isinstance(table[key], list) else [table[key]]
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int | float):
            raise ConfigError(f"{place}{key}: {each!r} is not a number; 1 is full bisection")
    return tuple(map(float, found))


_READERS: Final[dict[str, Callable[[str, Mapping[str, Any], str], Any]]] = {
    "radix": _ports, "fan_in": _ports, "taper": _tapers, "aggregates": values.flag_of,
}  # fmt: skip
"""Readers of keys that are not counts of at least 1."""
