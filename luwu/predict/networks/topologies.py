"""Networks between hosts: what a group of ranks has of one, and what it is made of.

An endpoint is the port of one rank. Switches have k ports; below the top tier u of them lead up
and d down, and the taper of a tier is d/u. n endpoints, t tiers, R rails:

    S1  ports       u = floor(k/(1 + taper)), d = floor(u taper)
    S2  tiers       smallest t with k d_1 ... d_(t-1) >= n; that is 2 (k/2)^t >= n without tapers
    S3  switches    N_1 = R ceil(n/(R d_1)), N_i = ceil(N_(i-1) u_(i-1)/d_i), at the top with k for
                    d_i; in all (2t - 1) n/k where taper is 1 and nothing is left over
    S4  links       n + sum of N_i u_i, which is t n then; two transceivers each
    S5  neighbours  a block of tier i (D_i endpoints, U_i uplinks) is left by min(stride, D_i) of
                    the flows to the next rank; each has min(1, U_i/flows) of a port
    S6  all-to-all  of what D_i endpoints send, (g - c_i)/(g - 1) leaves the block, where c_i of the
                    g ranks of a group are in it
    S8  rail-only   all-to-all is an exchange in the domain of K, then one in the rail:
                    (K - 1)/K / domain rate + (g - K)/g / rate

Of networks whose switches are fully connected in groups:

    D3  dragonfly   g groups of a routers with p endpoints and h = p/taper global ports each; every
                    pair in a group has a link, every pair of groups m = floor(a h/(g - 1))
    D5  all-to-all  limited by what leaves a group, or its local links, of which a message to
                    another group takes two: a g/(p (2g - 1)) of a port
    D6  neighbours  the links between two neighbours, or half of all that leave, by detours: what
                    adaptive routing takes, whichever is more

Rates are what one rank has while every rank of the network works in a group of the same form.
Where groups do not fill blocks evenly, they are those of the worst placed one. They count ports, so
they are reached where blocks have equally many links to all switches above; other sizes come out of
S3 with as few switches, and some flows then meet on a link.
Sources: Kim et al. ISCA 2008 (dragonfly); derived: S5, S6, D5 and D6 count flows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Network

NEIGHBOUR: Final = ("all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter", "send")
"""Exchanges in which a rank sends to the next one: rings, chains."""
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


@dataclass(frozen=True, slots=True)
class Inventory:
    """The switches and links of a network, without the ports of the hosts."""

    switches: int
    links: int

    @property
    def transceivers(self) -> int:
        """One at each end of a link."""
        return 2 * self.links


def check_needs_no_sums(collective: str) -> None:
    """Raises ConfigError for an exchange that only switches which sum can do."""
    if collective in IN_NETWORK:
        raise ConfigError(
            f"collective: {collective} needs switches that aggregate, which this network has not; "
            f"{', '.join(NEIGHBOUR)} and {ALL_TO_ALL} fit"
        )


def alone(network: Network) -> Connection:
    """One rank exchanges nothing."""
    return Connection(rate=network.port_rate, latency_s=0.0, hops=0)


def over_switches(network: Network, hops: int, share: float) -> Connection:
    """A share of a port, over so many switches."""
    latency_s = network.latency_s + hops * network.hop_s
    return Connection(rate=network.port_rate * share, latency_s=latency_s, hops=hops)


# ---------------------------------------------------------------------- tiers of switches


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
    if group.size == 1:
        return alone(topology.network)
    placed, domains = place(group, rails), topology.endpoints // rails
    below = topology.tiers[:-1]
    crossed = [tier for tier in below if _crosses(tier, rails, domains, placed, collective)]
    share = min([1.0, *(_share(tier, rails, group, placed, collective) for tier in crossed)])
    return over_switches(topology.network, 2 * len(crossed) + 1, share)


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
        if not self.aggregates:
            check_needs_no_sums(collective)
        return tiered_connection(self, self.rails, group, collective)


@dataclass(frozen=True, slots=True, kw_only=True)
class RailOnly:
    """A Clos network for each rail, and none between rails: what changes rails is forwarded by a
    rank in the fast domain of a host. No switch serves two rails, so that short rails leave ports
    of large switches empty."""

    endpoints: int
    radix: int
    network: Network
    domain: int
    """Ranks of a fast domain, and so rails."""
    domain_rate: float
    """Rate of the fast domain, bytes per second of one rank and direction."""
    domain_latency_s: float
    tapers: tuple[float, ...] = ()
    """Tapers of each rail's network."""

    def __post_init__(self) -> None:
        if self.endpoints % self.domain:
            raise ConfigError(
                f"domain: {self.domain} ranks do not divide {self.endpoints} endpoints; each rail "
                "has one of every domain"
            )
        _ = self.rail

    @property
    def rail(self) -> Clos:
        return Clos(
            endpoints=self.endpoints // self.domain, radix=self.radix, network=self.network,
            tapers=self.tapers,
        )  # fmt: skip

    @property
    def inventory(self) -> Inventory:
        """Inventory of all rails, without the fast domains."""
        one = self.rail.inventory
        return Inventory(self.domain * one.switches, self.domain * one.links)

    def connection(self, group: RankGroup, collective: str) -> Connection:
        """Connection of each rank of a group (S8). Raises ConfigError."""
        check_needs_no_sums(collective)
        if group.size == 1:
            return alone(self.network)
        placed = place(group, self.domain)
        if placed.domains == 1:
            return Connection(rate=self.domain_rate, latency_s=self.domain_latency_s, hops=0)
        in_rail = self.rail.connection(RankGroup(placed.domains, placed.step), collective)
        if placed.per_domain == 1:
            return in_rail
        rate = min(in_rail.rate, self.domain_rate)
        if collective == ALL_TO_ALL:
            size, own = group.size, placed.per_domain
            in_domain_s = (own - 1) / own / self.domain_rate
            rate = (size - 1) / size / (in_domain_s + (size - own) / size / in_rail.rate)
        latency_s = in_rail.latency_s + self.domain_latency_s
        return Connection(rate=rate, latency_s=latency_s, hops=in_rail.hops)


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


# ---------------------------------------------------------------------- dragonfly


@dataclass(frozen=True, slots=True, kw_only=True)
class Dragonfly:
    """Groups of routers; within a group all are connected, and all groups among each other."""

    groups: int
    routers_per_group: int
    endpoints_per_router: int
    network: Network
    global_taper: float = 1.0
    """Endpoints of a router over its global links."""

    def __post_init__(self) -> None:
        links = self.endpoints_per_router / self.global_taper if self.global_taper > 0 else 0.0
        if links < 1 or links != int(links):
            raise ConfigError(
                f"global_taper: {self.global_taper!r} leaves {links:g} global links for "
                f"{self.endpoints_per_router} endpoints of a router; a whole number from 1 on fits"
            )
        most = self.routers_per_group * int(links) + 1
        if self.groups > most:
            raise ConfigError(
                f"groups: {self.groups} cannot all be connected; {self.routers_per_group} routers "
                f"with {links:g} global links each reach at most {most} groups"
            )

    @property
    def endpoints(self) -> int:
        return self.groups * self.routers_per_group * self.endpoints_per_router

    @property
    def global_links(self) -> int:
        return int(self.endpoints_per_router / self.global_taper)

    @property
    def links_per_pair(self) -> int:
        """Between two groups, if there are several (D3)."""
        return self.routers_per_group * self.global_links // max(1, self.groups - 1)

    @property
    def radix(self) -> int:
        """Ports that a router needs; 0 where one rank is alone."""
        if self.endpoints == 1:
            return 0
        outside = self.global_links if self.groups > 1 else 0
        return self.endpoints_per_router + self.routers_per_group - 1 + outside

    @property
    def inventory(self) -> Inventory:
        """Routers, and links of all three kinds (D3)."""
        if self.endpoints == 1:
            return Inventory(0, 0)
        a, g = self.routers_per_group, self.groups
        links = self.endpoints + g * math.comb(a, 2) + self.links_per_pair * math.comb(g, 2)
        return Inventory(a * g, links)

    def connection(self, group: RankGroup, collective: str) -> Connection:
        """Connection of each rank of a group. Raises ConfigError."""
        check_needs_no_sums(collective)
        if group.size == 1:
            return alone(self.network)
        a, p, g = self.routers_per_group, self.endpoints_per_router, self.groups
        extent = group.size * group.stride
        if p % extent == 0:
            return over_switches(self.network, 1, 1.0)
        is_global = g > 1 and a * p % extent != 0
        outgoing, shares = self.links_per_pair * (g - 1), [1.0]
        if collective != ALL_TO_ALL:  # D6
            if a > 1:
                shares.append(max(1, (a - 1) / 2) / min(group.stride, p))
            if is_global:
                flows = min(group.stride, a * p)
                shares.append(max(self.links_per_pair, outgoing / 2) / flows)
        elif is_global:  # D5, among all routers
            inside = max(1, min(group.size, a * p // group.stride))
            shares.append(outgoing / (a * p * (group.size - inside) / (group.size - 1)))
            if a > 1:
                shares.append(a * g / (p * (2 * g - 1)))
        else:
            shares.append(a / p)
        return over_switches(self.network, 4 if is_global else 2, min(shares))
