"""`[topology]` of a question: how the network is built, made into one of the classes that know.

An endpoint is the port of one device; of sockets, that of a host. `taper` is a number, or a list
from the hosts up. `rails` and `domain` are by default as many as devices share a fast domain,
`domain_rate` is that domain's, and `domain_latency` the time of a switch. The network's rate and
latency are those of `network`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from luwu.base.errors import ConfigError, suggestion
from luwu.predict.hardware import units
from luwu.predict.hardware.hardware import Device, Network
from luwu.predict.hardware.keys import check_keys, flag_of, whole_of, wholes_of
from luwu.predict.hardware.units import Dimension
from luwu.predict.networks.direct_topologies import Dragonfly, Torus
from luwu.predict.networks.topologies import AggregationTree, Clos, RailOnly

KINDS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "single-switch": (("radix",), ("aggregates", "endpoints")),
    "clos": (("radix",), ("taper", "aggregates", "endpoints")),
    "rail-optimised": (("radix",), ("taper", "rails", "aggregates", "endpoints")),
    "rail-only": (("radix",), ("taper", "domain", "domain_rate", "domain_latency", "endpoints")),
    "torus": (("sizes",), ()),
    "dragonfly": (("groups", "routers_per_group", "endpoints_per_router"), ("global_taper",)),
    "aggregation-tree": (("fan_in",), ("endpoints",)),
}
"""Keys that are needed, and those that may be left out."""
_WHOLE: Final = (
    "radix", "endpoints", "rails", "domain", "fan_in", "groups", "routers_per_group",
    "endpoints_per_router",
)  # fmt: skip
_PLACE: Final = "topology."
Built: TypeAlias = Clos | RailOnly | Torus | Dragonfly | AggregationTree


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyChoice:
    """A network as it was asked for, before its ports and endpoints are known."""

    kind: str
    radix: int = 0
    tapers: tuple[float, ...] = ()
    aggregates: bool = False
    rails: int | None = None
    domain: int | None = None
    domain_rate: float | None = None
    domain_latency_s: float | None = None
    sizes: tuple[int, ...] = ()
    fan_in: int = 0
    groups: int = 0
    routers_per_group: int = 0
    endpoints_per_router: int = 0
    global_taper: float = 1.0
    endpoints: int | None = None

    def build(
        self,
        network: Network,
        device: Device | None,
        ranks: int,
        nodes: int = 0,
        *,
        domain: int | None = None,
    ) -> Built:
        """For so many ranks, `domain` of them in a fast domain, and optimizer nodes. Raises
        ConfigError where it has no place for them, or cannot be built."""
        tree = self.kind == "aggregation-tree"
        needed = ranks if tree else ranks + nodes
        built = self._built(network, device, self.endpoints or needed, nodes, domain)
        if built.endpoints < needed:
            key = "endpoints" if self.endpoints else "sizes" if self.kind == "torus" else "groups"
            more = f" and {nodes} optimizer nodes" if nodes and not tree else ""
            raise ConfigError(
                f"{_PLACE}{key}: the network has {built.endpoints} endpoints, but there are "
                f"{ranks} ranks{more}; {needed} or more fit"
            )
        return built

    def _built(
        self,
        network: Network,
        device: Device | None,
        endpoints: int,
        nodes: int,
        domain: int | None,
    ) -> Built:
        if self.kind == "single-switch":
            if endpoints > self.radix:
                raise ConfigError(
                    f"endpoints: {endpoints} do not fit a single switch of {self.radix} ports; at "
                    f"most {self.radix} fit, or take a Clos network"
                )
            return Clos(
                endpoints=endpoints, radix=self.radix, network=network, aggregates=self.aggregates
            )
        if self.kind in ("clos", "rail-optimised"):
            rails = 1 if self.kind == "clos" else self.rails or domain or _domain(device, "rails")
            return Clos(
                endpoints=self._in_rails(endpoints, rails), radix=self.radix, network=network,
                tapers=self.tapers, rails=rails, aggregates=self.aggregates,
            )  # fmt: skip
        if self.kind == "rail-only":
            return self._rail_only(network, device, endpoints, domain)
        if self.kind == "torus":
            return Torus(sizes=self.sizes, network=network)
        if self.kind == "dragonfly":
            return Dragonfly(
                groups=self.groups, routers_per_group=self.routers_per_group, network=network,
                endpoints_per_router=self.endpoints_per_router, global_taper=self.global_taper,
            )  # fmt: skip
        return AggregationTree(
            endpoints=endpoints, fan_in=self.fan_in, network=network, optimizer_nodes=nodes
        )

    def _in_rails(self, endpoints: int, rails: int) -> int:
        """As many in each rail, where it is not given how many endpoints there are."""
        return self.endpoints or -(-endpoints // rails) * rails

    def _rail_only(
        self, network: Network, device: Device | None, endpoints: int, domain: int | None
    ) -> RailOnly:
        rate = self.domain_rate or (device.domain_rate if device is not None else None)
        if rate is None:
            raise ConfigError(
                f"{_PLACE}domain_rate is missing: what changes rails goes through a fast domain, "
                'and this device has none; give its rate, such as "450 GB/s", or take clos'
            )
        latency_s = self.domain_latency_s
        rails = self.domain or domain or _domain(device, "domain")
        return RailOnly(
            endpoints=self._in_rails(endpoints, rails), radix=self.radix, network=network,
            tapers=self.tapers, domain=rails, domain_rate=rate,
            domain_latency_s=network.hop_s if latency_s is None else latency_s,
        )  # fmt: skip


def _domain(device: Device | None, key: str) -> int:
    if device is None:
        raise ConfigError(f"{_PLACE}{key} is missing: hosts of sockets have no domain of devices")
    return int(device.domain_count)


def check_ports(network: Network) -> None:
    """Refuse a network of shared ports: an endpoint is the port of one device. Raises
    ConfigError."""
    if network.devices_count > 1:
        raise ConfigError(
            f"nics_per_host: {network.devices_count:g} devices share a NIC, while [topology] has a "
            "port for each; leave one of them out"
        )


def make_topology(table: Mapping[str, Any]) -> TopologyChoice:
    """A choice of a table. Raises ConfigError, which names the key."""
    kind = table.get("kind")
    if kind not in KINDS:
        raise ConfigError(
            f"{_PLACE}kind: {kind!r} is not one of {', '.join(KINDS)}{suggestion(str(kind), KINDS)}"
        )
    needed, optional = KINDS[kind]
    check_keys(_PLACE, table, ("kind", *needed, *optional), needed)
    values: dict[str, Any] = dict(wholes_of(_PLACE, table, _WHOLE))
    if "taper" in table:
        values["tapers"] = _tapers(table["taper"])
    if "global_taper" in table:
        values["global_taper"] = _ratio("global_taper", table["global_taper"])
    if "sizes" in table:
        values["sizes"] = _sizes(table["sizes"])
    for key, name, dimension in (
        ("domain_rate", "domain_rate", Dimension.BYTES_PER_S),
        ("domain_latency", "domain_latency_s", Dimension.SECONDS),
    ):
        if key in table:
            values[name] = units.parse(_PLACE + key, table[key], dimension)
    return TopologyChoice(kind=kind, aggregates=flag_of(_PLACE, table, "aggregates"), **values)


def _tapers(value: Any) -> tuple[float, ...]:
    """One of the lowest tier, or a list from the hosts up."""
    found = value if isinstance(value, list) else [value]
    return tuple(_ratio("taper", each) for each in found)


def _ratio(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{_PLACE}{key}: {value!r} is not a number; 1 is full bisection")
    return float(value)


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{_PLACE}sizes: {value!r} is not a list of counts, such as [8, 8]")
    return tuple(whole_of(_PLACE, {"sizes": each}, "sizes") for each in value)
