"""The cost of machines and networks: to buy, per hour, per token; and the energy of a step.

    B1  to buy        sum of count * price, at work sum of count * power
    B2  a network     its switches, its links, and two transceivers per link
    B3  a second      B1 / life + power * PUE * price of energy; rented: devices and nodes * rental
    B4  tokens        tokens per second / dollars per second; its inverse for a million tokens
    B5  a step        sum of count * power * seconds of the step

An unknown price or power is an error that names it, not a zero. Dollars, watts, joules, seconds.
Derived; with P a port's price and c a transceiver's, B2 of a Clos of t
tiers is n [(2t - 1) P + 2 t c].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Disk, Link, Nic, Server, Switch, Tariff
from luwu.predict.networks.choice import Built
from luwu.predict.networks.topologies import AggregationTree

MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One item of a bill: a count of one entry of the catalogue."""

    what: str
    """For people, and the same in all bills: `switches`."""
    entry: str
    """`switch.QM9700`"""
    count: float
    price: float | None
    power: float | None
    power_key: str = "power"
    """Key of the entry for the power of a part."""


@dataclass(frozen=True, slots=True)
class Bill:
    """The items that are bought (B1)."""

    items: tuple[Item, ...]

    @property
    def capex(self) -> float:
        """Dollars. Raises ConfigError where a price is not known."""
        return sum(self.capex_by_item().values())

    @property
    def watts(self) -> float:
        """At work. Raises ConfigError where a power is not known."""
        return sum(self.watts_by_item().values())

    def capex_by_item(self) -> dict[str, float]:
        """Dollars of each kind of item; they add up to `capex`."""
        return self._sums([(each, each.price, "price") for each in self.items])

    def watts_by_item(self) -> dict[str, float]:
        """Watts by kind of item; they add up to `watts`."""
        return self._sums([(each, each.power, each.power_key) for each in self.items])

    def _sums(self, numbers: list[tuple[Item, float | None, str]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for item, value, key in numbers:
            if item.count and value is None:
                raise ConfigError(
                    f"{item.entry}.{key} is not known, but {item.count:g} {item.what} are needed; "
                    "give it in a file of --catalogue"
                )
            found[item.what] = found.get(item.what, 0.0) + item.count * (value or 0.0)
        return found


def network_bill(topology: Built, *, switch: Switch | None, link: Link) -> Bill:
    """Switches, links and transceivers of a network (B2); without the hosts' own ports.

    Raises: ConfigError for switches with too few ports, or ports and links that are too slow."""
    parts, rate = topology.inventory, topology.network.rate
    items: list[Item] = []
    if parts.switches:
        assert switch is not None  # `bill_of` saw to it
        if switch.ports_count < topology.radix:
            raise ConfigError(
                f"switch.{switch.name}.ports_count: {switch.ports_count:g} ports, but the network "
                f"needs {topology.radix} of each switch; a smaller radix or a larger switch fits"
            )
        _fast_enough(f"switch.{switch.name}.port_rate", switch.port_rate, rate)
        items.append(
            Item(
                what="switches", entry=f"switch.{switch.name}", count=parts.switches,
                price=switch.price, power=switch.power,
            )
        )  # fmt: skip
    if parts.links:
        _fast_enough(f"link.{link.name}.rate", link.rate, rate)
    entry = f"link.{link.name}"
    items.append(Item(what="links", entry=entry, count=parts.links, price=link.price, power=0.0))
    items.append(
        Item(
            what="transceivers", entry=entry, count=parts.transceivers, price=0.0,
            power=link.transceiver_power, power_key="transceiver_power",
        )
    )  # fmt: skip
    return Bill(tuple(items))


def _fast_enough(key: str, found: float, needed: float) -> None:
    if found < needed:
        raise ConfigError(
            f"{key}: {found * 8e-9:g} Gbit/s, but the network's ports have {needed * 8e-9:g} "
            "Gbit/s; as fast a one fits, or a slower network"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Hosts of one kind, with what is added to each: workers, or optimizer nodes."""

    server: Server
    count: int
    nic: Nic | None = None
    nics: int = 0
    """Added to each host; those that its price includes do not count."""
    disk: Disk | None = None
    disks: int = 0
    """Added to each host."""
    what: str = ""
    """In bills; by default by whether they have devices."""

    @property
    def devices(self) -> int:
        """Devices of all hosts."""
        return self.count * int(self.server.devices_count)

    @property
    def bill(self) -> Bill:
        """Without the network."""
        server = self.server
        items = [
            Item(
                what=self.what or ("hosts" if server.devices_count else "optimizer nodes"),
                entry=f"server.{server.name}", count=self.count, price=server.price,
                power=server.power,
            )
        ]  # fmt: skip
        parts: tuple[tuple[str, str, int, Nic | Disk | None], ...] = (
            ("network cards", "nic", self.nics, self.nic),
            ("disks", "disk", self.disks, self.disk),
        )
        for what, kind, each, part in parts:
            if part is not None and each:
                items.append(
                    Item(
                        what=what, entry=f"{kind}.{part.name}", count=each * self.count,
                        price=part.price, power=part.power,
                    )
                )  # fmt: skip
        return Bill(tuple(items))


def cluster_bill(
    hosts: Sequence[Hosts],
    topology: Built | None = None,
    *,
    switch: Switch | None = None,
    link: Link | None = None,
) -> Bill:
    """Hosts of all kinds and the network between them. Raises ConfigError."""
    items = tuple(item for each in hosts for item in each.bill.items)
    if topology is None:
        return Bill(items)
    assert link is not None  # `bill_of` saw to it
    places = topology.endpoints
    if isinstance(topology, AggregationTree):
        places += topology.optimizer_nodes
    count = sum(each.count for each in hosts)
    if count > places:
        raise ConfigError(
            f"topology.endpoints: the network has {places}, but there are {count} hosts; each "
            "takes at least one"
        )
    return Bill(items + network_bill(topology, switch=switch, link=link).items)


def owned_dollars_per_s(bill: Bill, tariff: Tariff) -> float:
    """Cost per second of bought machines, power included (B3)."""
    return bill.capex / tariff.life_s + bill.watts * tariff.pue * tariff.energy_price


def rented_dollars_per_s(hosts: Iterable[Hosts]) -> float:
    """Rent per second of devices with their part of host and network, and of hosts without devices
    (B3). Raises ConfigError if one of them cannot be rented."""
    total = 0.0
    for each in hosts:
        server = each.server
        key = "device_rental" if each.devices else "rental"
        rent: float | None = getattr(server, key)
        if rent is None:
            raise ConfigError(
                f"server.{server.name}.{key} is not known; give it in a file of --catalogue or in "
                "[cost], which has device_rental and node_rental, or buy it"
            )
        total += (each.devices or each.count) * rent
    return total


def tokens_per_dollar(tokens_per_s: float, dollars_per_s: float) -> float:
    """B4. Raises ConfigError where nothing costs anything."""
    if not dollars_per_s > 0:
        raise ConfigError(f"dollars_per_s: {dollars_per_s!r} is not above zero; give prices")
    return tokens_per_s / dollars_per_s


def dollars_per_million_tokens(tokens_per_s: float, dollars_per_s: float) -> float:
    """B4."""
    return MILLION / tokens_per_dollar(tokens_per_s, dollars_per_s)
