"""Networks between hosts: what a group of ranks has of one, and what it is made of.

An endpoint is the port of one rank. Switches have k ports; below the top tier u of them lead up
and d down, and the taper of a tier is d/u. n endpoints, t tiers, R rails:

    S1  ports       u = floor(k/(1 + taper)), d = floor(u taper)
    S2  tiers       smallest t with k d_1 ... d_(t-1) >= n; that is 2 (k/2)^t >= n without tapers
    S3  switches    N_1 = R ceil(n/(R d_1)), N_i = ceil(N_(i-1) u_(i-1)/d_i), at the top with k for
                    d_i; in all (2t - 1) n/k where taper is 1 and nothing is left over
    S4  links       n + sum of N_i u_i, which is t n then
    S5  neighbours  a block of tier i (D_i endpoints, U_i uplinks) is left by min(stride, D_i) of
                    the flows to the next rank; each has min(1, U_i/flows) of a port
    S6  all-to-all  of what D_i endpoints send, (g - c_i)/(g - 1) leaves the block, where c_i of the
                    g ranks of a group are in it

Rates are what one rank has while every rank of the network works in a group of the same form.
Where groups do not fill blocks evenly, they are those of the worst placed one. They count ports, so
they are reached where blocks have equally many links to all switches above; other sizes come out of
S3 with as few switches, and some flows then meet on a link.
Source: derived: S5 and S6 count flows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Network

ALL_TO_ALL: Final = "all_to_all"
IN_NETWORK: Final = ("in_network_all_reduce", "push", "pull")
"""Summed or copied by switches: a link carries the tensor once."""


@dataclass(frozen=True, slots=True)
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


class Inventory(NamedTuple):
    """The switches and links of a network, without the ports of the hosts."""

    switches: int
    links: int


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier of switches, and the blocks of endpoints that end there."""

    switches: int
    up: int
    """Uplinks of a switch; none at the top."""
    block: int
    """Endpoints of a full block."""
    uplinks: int
    """Uplinks of a full block."""
    rails: int
    """Rails that a block has a part of."""

    @property
    def domains(self) -> int:
        """Endpoints of a block in one of its rails."""
        return self.block // self.rails


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the ranks of a group are, if endpoints are in rails: `per_domain` of them in each of
    `domains`, every `step`-th."""

    per_domain: int
    step: int
    domains: int

    @property
    def extent(self) -> int:
        """Domains from the start of a group to that of the next one beside it."""
        return self.step * self.domains


def place(group: RankGroup, domain: int) -> Placement:
    """A group among domains of so many ranks. Raises ConfigError."""
    if group.stride % domain == 0:
        return Placement(1, group.stride // domain, group.size)
    if domain % group.stride:
        raise ConfigError(
            f"group.stride: {group.stride} neither divides a domain of {domain} ranks nor is a "
            "multiple of it"
        )
    per_domain = domain // group.stride
    if per_domain % group.size == 0:
        return Placement(group.size, 1, 1)
    if group.size % per_domain:
        raise ConfigError(
            f"group.size: {group.size} ranks, every {group.stride}., do not fill domains of "
            f"{domain}; a multiple of {per_domain}, or what divides it, fits"
        )
    return Placement(per_domain, 1, group.size // per_domain)


def tiered_connection(
    topology: Clos | AggregationTree, rails: int, group: RankGroup, collective: str
) -> Connection:
    """Connection of a group in blocks within blocks (S5, S6)."""
    network = topology.network
    if group.size == 1:
        return Connection(rate=network.port_rate, latency_s=0.0, hops=0)
    placed, domains = place(group, rails), topology.endpoints // rails
    below = topology.tiers[:-1]
    crossed = [tier for tier in below if _crosses(tier, rails, domains, placed, collective)]
    share = min([1.0, *(_share(tier, rails, group, placed, collective) for tier in crossed)])
    hops = 2 * len(crossed) + 1
    return Connection(
        rate=network.port_rate * share, latency_s=network.latency_s + hops * network.hop_s,
        hops=hops,
    )  # fmt: skip


def _crosses(tier: Tier, rails: int, domains: int, placed: Placement, collective: str) -> bool:
    """True if a group leaves a block. Ring traffic changes rails within domains only."""
    changes = collective == ALL_TO_ALL or placed.domains == 1
    if changes and placed.per_domain > 1 and tier.rails < rails:
        return True
    return domains > tier.domains and tier.domains % placed.extent != 0


def _share(tier: Tier, rails: int, group: RankGroup, placed: Placement, collective: str) -> float:
    """Share of a port that each rank has of a block's uplinks."""
    fills = placed.extent % tier.domains == 0 or tier.domains % placed.extent == 0
    cuts = 1 if fills else 2  # a group may be cut at the start of a block, and one at its end
    if collective == ALL_TO_ALL:
        leaving = _leaving(tier, rails, group, placed, cuts)
    elif placed.domains == 1:
        leaving = tier.block
    else:
        streams = tier.rails
        if collective in IN_NETWORK:  # what the rails of a group bring to one switch leaves as one
            streams = max(1, tier.rails // placed.per_domain)
        leaving = streams * min(cuts * placed.step, tier.domains)
    return tier.uplinks / leaving


def _leaving(tier: Tier, rails: int, group: RankGroup, placed: Placement, cuts: int) -> float:
    """Ports' worth of all-to-all traffic that leaves a block."""
    size = group.size
    whole_rails = placed.per_domain == 1 or tier.rails == rails
    if cuts == 2 and whole_rails and tier.domains > placed.extent:  # only two groups are cut
        groups = cuts * tier.rails * placed.step / placed.per_domain
        return min(float(tier.block), groups * size * size / 4 / (size - 1))
    inside = max(1, placed.per_domain * tier.rails // rails)
    inside *= max(1, min(placed.domains, tier.domains // (cuts * placed.step)))
    return tier.block * (size - inside) / (size - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clos:
    """A folded Clos network, or fat tree, of as many tiers as it needs.

    `rails` above 1: rail-optimised. The ranks of a host, one a rail, are on switches of their own
    in the first tier; the tiers above are shared."""

    endpoints: int
    radix: int
    network: Network
    tapers: tuple[float, ...] = ()
    """Tapers of the tiers from the hosts up; 1 by default."""
    rails: int = 1
    aggregates: bool = False
    """Its switches sum what passes."""

    def __post_init__(self) -> None:
        if self.endpoints % self.rails:
            raise ConfigError(
                f"rails: {self.rails} do not divide {self.endpoints} endpoints; each rail has one "
                "of every host"
            )
        for taper in self.tapers:
            if not 1 <= taper <= self.radix - 1:
                raise ConfigError(
                    f"tapers: {taper!r} does not fit; 1 is full bisection, and {self.radix} ports "
                    f"allow up to {self.radix - 1}"
                )
        tiers = len(self.tiers)
        if len(self.tapers) > max(0, tiers - 1):
            raise ConfigError(
                f"tapers: {len(self.tapers)} are given, but {self.endpoints} endpoints on switches "
                f"of {self.radix} ports need {tiers} tiers: at most {max(0, tiers - 1)} fit, as "
                "the top has no uplinks"
            )

    def ports(self, tier: int) -> tuple[int, int]:
        """Down and up, of a switch in a tier below the top, counted from 0 (S1)."""
        taper = self.tapers[tier] if tier < len(self.tapers) else 1.0
        rounding = 1e-9  # tapers are floats: 21 ports by 1.1 are not 23.099999
        up = math.floor(self.radix / (1 + taper) + rounding)
        return math.floor(up * taper + rounding), up

    @property
    def tiers(self) -> list[Tier]:
        """From the hosts up (S2, S3). Raises ConfigError where no number of them is enough."""
        if self.endpoints <= self.radix:
            return [self._top(1)] if self.endpoints > 1 else []
        found: list[Tier] = []
        down, up = self.ports(0)
        switches = leaves = self.rails * -(-self.endpoints // (self.rails * down))
        block, uplinks, block_leaves = down, up, 1
        while True:
            rails = min(self.rails, block_leaves)
            found.append(Tier(switches, up, block, uplinks, rails))
            if self.radix * block_leaves >= leaves:
                return [*found, self._top(-(-switches * up // self.radix))]
            below, (down, up) = up, self.ports(len(found))
            if down < 2:
                raise ConfigError(
                    f"radix: {self.radix} ports cannot connect {self.endpoints} endpoints; at "
                    "least 4 can"
                )
            switches = -(-switches * below // down)
            block, uplinks, block_leaves = block * down, uplinks * up, block_leaves * down

    def _top(self, switches: int) -> Tier:
        return Tier(switches, up=0, block=self.endpoints, uplinks=0, rails=self.rails)

    @property
    def inventory(self) -> Inventory:
        """Switches and links (S3, S4)."""
        tiers = self.tiers
        links = sum(each.switches * each.up for each in tiers) + (self.endpoints if tiers else 0)
        return Inventory(sum(each.switches for each in tiers), links)

    def connection(self, group: RankGroup, collective: str) -> Connection:
        """Connection of each rank of a group. Raises ConfigError."""
        if collective in IN_NETWORK and not self.aggregates:
            raise ConfigError(
                f"topology.aggregates: {collective} needs switches that sum; give aggregates = "
                "true, or an aggregation-tree"
            )
        return tiered_connection(self, self.rails, group, collective)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationTree:
    """A tree of SmartSwitches. Each sums what `fan_in` children bring and has one uplink, which
    carries the tensor once; on the way down each copies."""

    endpoints: int
    fan_in: int
    network: Network
    optimizer_nodes: int = 0
    """On the topmost switch."""

    @property
    def tiers(self) -> list[Tier]:
        """From the hosts up to the topmost switch."""
        found: list[Tier] = []
        switches, block = self.endpoints, 1
        while switches > 1:
            switches, block = -(-switches // self.fan_in), block * self.fan_in
            up = 1 if switches > 1 else 0
            found.append(Tier(switches, up, block, up, rails=1))
        return found

    @property
    def radix(self) -> int:
        """Ports that a switch needs: its children's, and upwards."""
        tiers = len(self.tiers)
        return self.fan_in + max(self.optimizer_nodes, 1 if tiers > 1 else 0) if tiers else 0

    @property
    def inventory(self) -> Inventory:
        """An endpoint, a switch but for the topmost and an optimizer node have one link each."""
        switches = sum(each.switches for each in self.tiers)
        links = self.endpoints + switches - 1 if switches else 0
        return Inventory(switches, links + self.optimizer_nodes)

    def connection(self, group: RankGroup, collective: str) -> Connection:
        """Connection of each rank of a group. Raises ConfigError."""
        return tiered_connection(self, 1, group, collective)
