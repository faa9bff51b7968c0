"""Rail-only networks beside full-bisection Clos networks: what is saved, and what it costs.

saving        1 - what it costs / what a full-bisection Clos of as many endpoints costs
all-to-all    rail-only takes longer by [(K-1)/K / domain rate] / [(N-K)/N / rate], as what
              changes rails is exchanged in the domain of K first
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from luwu.predict.hardware.hardware import Link, Network, Switch
from luwu.predict.networks.cost import Bill, network_bill
from luwu.predict.networks.rank_groups import port_rate
from luwu.predict.networks.topologies import Clos, RailOnly


@dataclass(frozen=True, slots=True, kw_only=True)
class RailOnlySaving:
    """Rail-only beside a full-bisection Clos network of as many endpoints."""

    endpoints: int
    radix: int
    domain: int
    tiers_full: int
    tiers_rail: int
    full: Bill
    rail: Bill
    all_to_all_overhead: float
    """Of the time that an all-to-all among all endpoints takes: 0.1 is a tenth more."""

    @property
    def capex_saving(self) -> float:
        """Share of the network's price that is saved."""
        return _saved(self.full.capex, self.rail.capex)

    @property
    def power_saving(self) -> float:
        """Share of the network's power that is saved."""
        return _saved(self.full.watts, self.rail.watts)


def _saved(before: float, after: float) -> float:
    return 1 - after / before if before else 0.0


def all_to_all_overhead(ranks: int, domain: int, rate: float, domain_rate: float) -> float:
    """Of rail-only over full bisection, in an all-to-all among so many ranks.

    Rates are of one rank and direction.
    """
    return (domain - 1) / domain / domain_rate / ((ranks - domain) / ranks / rate)


def rail_only_saving(
    endpoints: int, domain: int, *, network: Network, switch: Switch, link: Link, domain_rate: float
) -> RailOnlySaving:
    """What rail-only saves, and what it costs. Raises ConfigError."""
    radix = int(switch.ports_count)
    overhead = all_to_all_overhead(endpoints, domain, port_rate(network), domain_rate)
    full = Clos(endpoints=endpoints, radix=radix, network=network)
    rails = RailOnly(
        endpoints=endpoints, radix=radix, network=network, domain=domain, domain_rate=domain_rate,
        domain_latency_s=0.0,  # of no account here: parts are counted
    )  # fmt: skip
    return RailOnlySaving(
        endpoints=endpoints, radix=radix, domain=domain, tiers_full=full.tier_count,
        tiers_rail=rails.rail.tier_count, full=network_bill(full, switch=switch, link=link),
        rail=network_bill(rails, switch=switch, link=link), all_to_all_overhead=overhead,
    )  # fmt: skip


def switch_of_radix(switch: Switch, radix: int) -> Switch:
    """A switch with another number of ports, at the same price and power of a port."""
    share = radix / switch.ports_count
    return replace(
        switch, name=f"{switch.name}, {radix} ports", ports_count=float(radix),
        price=None if switch.price is None else switch.price * share,
        power=None if switch.power is None else switch.power * share,
    )  # fmt: skip


def rail_only_savings(
    endpoints: int,
    *,
    radices: Iterable[int],
    domains: Sequence[int],
    network: Network,
    switch: Switch,
    link: Link,
    domain_rate: float,
) -> list[RailOnlySaving]:
    """Over radices, at the price and power of a port of `switch`, and sizes of domains."""
    return [
        rail_only_saving(
            endpoints, domain, network=network, switch=switch_of_radix(switch, radix), link=link,
            domain_rate=domain_rate,
        )
        for radix in radices
        for domain in domains
    ]  # fmt: skip
