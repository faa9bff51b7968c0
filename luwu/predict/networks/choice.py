"""`[topology]` of a question: how the network is built, made into one of the classes that know.

An endpoint is the port of one device. `taper` is a number, or a list
from the hosts up. `rails` and `domain` are by default as many as devices share a fast domain,
`domain_rate` is that domain's, and `domain_latency` the time of a switch. The network's rate and
latency are those of `network`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from luwu.base.errors import ConfigError
from luwu.predict.hardware import values
from luwu.predict.hardware.hardware import Device, Network
from luwu.predict.hardware.values import Dimension
from luwu.predict.networks.topologies import AggregationTree, Clos, Dragonfly, RailOnly

Built: TypeAlias = Clos | RailOnly | Dragonfly | AggregationTree
KINDS: Final[dict[str, tuple[type[Built], tuple[str, ...], tuple[str, ...]]]] = {
    "single-switch": (Clos, ("radix",), ("aggregates", "endpoints")),
    "clos": (Clos, ("radix",), ("taper", "aggregates", "endpoints")),
    "rail-optimised": (Clos, ("radix",), ("taper", "rails", "aggregates", "endpoints")),
    "rail-only":
        (RailOnly, ("radix",), ("taper", "domain", "domain_rate", "domain_latency", "endpoints")),
    "dragonfly":
        (Dragonfly, ("groups", "routers_per_group", "endpoints_per_router"), ("global_taper",)),
    "aggregation-tree": (AggregationTree, ("fan_in",), ("endpoints",)),
}  # fmt: skip
"""The class, keys that are needed, and those that may be left out."""
_PLACE: Final = "topology."


@dataclass(frozen=True, slots=True)
class TopologyChoice:
    """A network as it was asked for, before its ports and endpoints are known."""

    kind: str
    settings: tuple[tuple[str, Any], ...]
    """Those of its class that were given."""

    def build(
        self, network: Network, device: Device, ranks: int, nodes: int = 0, *, domain: int,
    ) -> Built:  # fmt: skip
        """For so many ranks, `domain` of them in a fast domain, and optimizer nodes. Raises
        ConfigError where it has no place for them, or cannot be built."""
        tree, own = self.kind == "aggregation-tree", dict(self.settings)
        needed = ranks if tree else ranks + nodes
        built = self._built(network, device, needed, nodes, domain)
        if built.endpoints < needed:
            key = "endpoints" if "endpoints" in own else "groups"
            more = f" and {nodes} optimizer nodes" if nodes and not tree else ""
            raise ConfigError(
                f"{_PLACE}{key}: the network has {built.endpoints} endpoints, but there are "
                f"{ranks} ranks{more}; {needed} or more fit"
            )
        return built

    def _built(
        self, network: Network, device: Device, needed: int, nodes: int, domain: int
    ) -> Built:
        (made, _, optional), given = KINDS[self.kind], dict(self.settings)
        own: dict[str, Any] = {"network": network, **given}
        if "endpoints" in optional:
            own.setdefault("endpoints", needed)
        if made is AggregationTree:
            own["optimizer_nodes"] = nodes
        if self.kind == "single-switch" and own["endpoints"] > own["radix"]:
            raise ConfigError(
                f"endpoints: {own['endpoints']} do not fit a single switch of {own['radix']} "
                f"ports; at most {own['radix']} fit, or take a Clos network"
            )
        if made is RailOnly:
            rate = given.get("domain_rate") or device.domain_rate
            if rate is None:
                raise ConfigError(
                    f"{_PLACE}domain_rate is missing: what changes rails goes through a fast "
                    "domain, and this device has none; give its rate, such as "
                    '"450 GB/s", or take clos'
                )
            own = {"domain_latency_s": network.hop_s, **own, "domain_rate": rate}
        key = {"rail-only": "domain", "rail-optimised": "rails"}.get(self.kind)
        if key is not None:
            own[key] = rails = own.get(key) or domain
            if "endpoints" not in given:  # as many in each rail
                own["endpoints"] = -(-needed // rails) * rails
        return made(**own)


def make_topology(table: Mapping[str, Any]) -> TopologyChoice:
    """A choice of a table. Raises ConfigError, which names the key."""
    kind = table.get("kind")
    values.check_choice(f"{_PLACE}kind", kind, KINDS)
    assert isinstance(kind, str)
    _, needed, optional = KINDS[kind]
    values.check_keys(_PLACE, table, ("kind", *needed, *optional), needed)
    settings = {key: _READERS.get(key, values.whole_of)(_PLACE, table, key)
                for key in (*needed, *optional) if key in table}  # fmt: skip
    return TopologyChoice(kind, tuple((_NAMES.get(key, key), settings[key]) for key in settings))


def _ports(place: str, table: Mapping[str, Any], key: str) -> int:
    """The ports of a switch: at least one for each of two neighbours. Raises ConfigError."""
    count = values.whole_of(place, table, key)
    if count < 2:
        raise ConfigError(f"{place}{key}: {count} is not a count; a whole number from 2 on fits")
    return count


def _ratio(place: str, table: Mapping[str, Any], key: str) -> float:
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{place}{key}: {value!r} is not a number; 1 is full bisection")
    return float(value)


def _ratios(place: str, table: Mapping[str, Any], key: str) -> tuple[float, ...]:
    """One of the lowest tier, or a list from the hosts up."""
    found = table[key] if isinstance(table[key], list) else [table[key]]
    return tuple(_ratio(place, {key: each}, key) for each in found)


def _parser(dimension: Dimension) -> Callable[[str, Mapping[str, Any], str], float]:
    return lambda place, table, key: values.quantity_of(place + key, table[key], dimension)


_READERS: Final[dict[str, Callable[[str, Mapping[str, Any], str], Any]]] = {
    "radix": _ports, "fan_in": _ports, "taper": _ratios, "global_taper": _ratio,
    "aggregates": values.flag_of, "domain_rate": _parser(Dimension.BYTES_PER_S),
    "domain_latency": _parser(Dimension.SECONDS),
}  # fmt: skip
"""Readers of keys that are not counts of at least 1."""
_NAMES: Final = {"taper": "tapers", "domain_latency": "domain_latency_s"}
"""Settings of classes that are not called as the keys."""
