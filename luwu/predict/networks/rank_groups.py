"""A group of ranks that exchange over a network, and what every network knows of it.

A network says, for a group and a collective, the three numbers that closed forms need: the rate of
one rank, the latency between two, and what passes the middle of the group; and what it is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Network

NEIGHBOUR: Final = ("all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter", "send")
"""Exchanges in which a rank sends to the next one: rings, chains."""
ALL_TO_ALL: Final = "all_to_all"
IN_NETWORK: Final = ("in_network_all_reduce", "push", "pull")
"""Summed or copied by switches: a link carries the tensor once."""

TRANSCEIVERS_PER_LINK: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Ranks that exchange: every `stride`-th of the network's, `size` of them."""

    size: int
    stride: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The connection of the ranks of a group to a network."""

    rate: float
    """Bytes a second of one rank and direction."""
    latency_s: float
    """Latency of a small message between the two ranks that are furthest apart."""
    hops: int
    """Switches on that way."""
    bisection_rate: float
    """Bytes a second from one half of the group to the other, one direction."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The switches and links of a network, without the ports of the hosts."""

    switches: int
    links: int

    @property
    def transceivers(self) -> int:
        """One at each end of a link."""
        return TRANSCEIVERS_PER_LINK * self.links

    def times(self, count: int) -> Inventory:
        """Inventory of so many networks like this one."""
        return Inventory(count * self.switches, count * self.links)


class Topology(Protocol):
    """A network between endpoints."""

    @property
    def endpoints(self) -> int: ...
    @property
    def network(self) -> Network: ...
    @property
    def radix(self) -> int:
        """Ports that its switches need; 0 where there is none."""

    @property
    def inventory(self) -> Inventory: ...
    def connection(self, group: RankGroup, collective: str) -> Connection:
        """Raises ConfigError for a group that does not fit, or an exchange that it cannot do."""


# ---------------------------------------------------------------------- checks


def whole(key: str, value: object, least: int = 1) -> None:
    """Refuse what is no count. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{key}: {value!r} is not a count; a whole number from {least} on fits")


def check_exchange(topology: Topology, group: RankGroup, collective: str, sums: bool) -> None:
    """Refuse a group that does not fit, or an exchange that cannot be done."""
    if collective in IN_NETWORK and not sums:
        raise ConfigError(
            f"collective: {collective} needs switches that aggregate, which this network has not; "
            f"{', '.join(NEIGHBOUR)} and {ALL_TO_ALL} fit"
        )
    if (group.size - 1) * group.stride >= topology.endpoints:
        raise ConfigError(
            f"group: {group.size} ranks, every {group.stride}., need "
            f"{(group.size - 1) * group.stride + 1} endpoints; the network has "
            f"{topology.endpoints}"
        )


def port_rate(network: Network) -> float:
    """Bytes a second of one port and direction, of a long message."""
    return network.port_rate


def alone(network: Network) -> Connection:
    """One rank exchanges nothing."""
    return Connection(rate=port_rate(network), latency_s=0.0, hops=0, bisection_rate=0.0)


def over_switches(network: Network, hops: int, share: float, bisection: float) -> Connection:
    """A share of a port, over so many switches; the bisection is in ports."""
    rate = port_rate(network)
    return Connection(
        rate=rate * share, latency_s=network.latency_s + hops * network.hop_s, hops=hops,
        bisection_rate=rate * bisection,
    )  # fmt: skip
