"""Networks whose switches are part of the hosts or fully connected in groups: closed forms alone.

    D1  torus       dimensions n_1 ... n_D, a link each way around: n links in a dimension (half of
                    that in one of 2, none in one of 1); no switches of its own
    D2  its middle  2 n/n_max links pass it (n/2 in dimensions of 2)
    D3  dragonfly   g groups of a routers with p endpoints and h = p/taper global ports each; every
                    pair in a group has a link, every pair of groups m = floor(a h/(g - 1))
    D5  all-to-all  in a torus, limited by what n/2 ranks send across the middle, 4 D2/n of a port;
                    in a dragonfly by what leaves a group, or its local links, of which a message to
                    another group takes two: a g/(p (2g - 1)) of a port
    D6  neighbours  the links between two neighbours, or half of all that leave, by detours: what
                    adaptive routing takes, whichever is more

Rates are what one rank has while all work, as in `topologies.py`.
Sources: Kim et al. ISCA 2008 (dragonfly); D5 and D6 count flows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Network
from luwu.predict.networks.topologies import (  # fmt: skip
    ALL_TO_ALL,
    Connection,
    Inventory,
    RankGroup,
    alone,
    check_exchange,
    over_switches,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """A ring of links in each dimension. The network's rate is that of one link."""

    sizes: tuple[int, ...]
    """Ranks count along the first dimension first."""
    network: Network
    radix: ClassVar[int] = 0
    """It has no switches."""

    @property
    def endpoints(self) -> int:
        """Endpoints of all dimensions."""
        return math.prod(self.sizes)

    @property
    def inventory(self) -> Inventory:
        """Links alone (D1)."""
        return Inventory(0, sum(self.endpoints * _ways(size) // 2 for size in self.sizes))

    def connection(self, group: RankGroup, collective: str) -> Connection:
        """Connection of a group that is whole dimensions. Raises ConfigError.

        The rate of exchanges between neighbours is that of one link."""
        check_exchange(self.endpoints, group, collective, sums=False)
        if group.size == 1:
            return alone(self.network)
        sizes = self.dimensions_of(group)
        share = 1.0
        if collective == ALL_TO_ALL:
            largest = max(sizes)
            middle = group.size // largest * _ways(largest)
            share = min(sum(_ways(size) for size in sizes), 4 * middle / group.size)
        return over_switches(self.network, sum(size // 2 for size in sizes), share)

    def dimensions_of(self, group: RankGroup) -> tuple[int, ...]:
        """The sizes of the torus that a group is. Raises ConfigError."""
        fits: list[str] = []
        for first, last in combinations(range(len(self.sizes) + 1), 2):
            found = RankGroup(math.prod(self.sizes[first:last]), math.prod(self.sizes[:first]))
            if found == group:
                return self.sizes[first:last]
            fits.append(f"{found.size} by {found.stride}")
        raise ConfigError(
            f"group: {group.size} ranks, every {group.stride}., are not whole dimensions of a "
            f"torus {' x '.join(map(str, self.sizes))}; size by stride that fit: {', '.join(fits)}"
        )


def _ways(size: int) -> int:
    """Links of a rank in a dimension."""
    return min(2, size - 1)


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
        """Endpoints of all groups."""
        return self.groups * self.routers_per_group * self.endpoints_per_router

    @property
    def global_links(self) -> int:
        """Global links of a router."""
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
        check_exchange(self.endpoints, group, collective, sums=False)
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
