"""`[cost]` of a question: what is bought or rented for it, per hour and token; energy of a step.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.identifiers import by_identifier, identifier, words
from luwu.predict.hardware import values
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hardware import Disk, Host, Link, Nic, Server, Switch, Tariff
from luwu.predict.hardware.values import Dimension
from luwu.predict.networks.choice import Built

_PLACE: Final = "cost."
_TARIFF: Final = ("life_years", "energy_price", "pue")
_ENTRIES: Final = ("server", "nic", "node_server", "switch", "link")
_RENTALS: Final = ("device_rental", "node_rental")
_KEYS: Final = (*_ENTRIES, "nics", *_TARIFF, "rented", *_RENTALS)
_OF_WHAT_IS_BOUGHT: Final = ("switch", "link", *_TARIFF)
HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a bill: a count of one entry of the catalogue."""

    what: str
    """For people, and the same in all bills: `switches`."""
    part: Server | Nic | Disk | Switch | Link
    count: int
    price: str = "price"
    """The entry's key for it; "" if it has none: the price of a link is that of its ends too."""
    power: str = "power"

    @property
    def entry(self) -> str:
        """`switch.QM9700`"""
        return f"{type(self.part).__name__.lower()}.{self.part.name}"


@dataclass(frozen=True, slots=True)
class Bill:
    """The items that are bought (B1). Raises ConfigError where a price or a power is not known."""

    items: Sequence[Item]

    @property
    def capex(self) -> float:
        """Dollars."""
        return sum(self.by_item("price").values())

    @property
    def watts(self) -> float:
        """At work."""
        return sum(self.by_item("power").values())

    def by_item(self, what: str) -> dict[str, float]:
        """The `price` or the `power` of each kind of item."""
        found: dict[str, float] = {}
        for item in self.items:
            key = getattr(item, what)
            value = getattr(item.part, key) if key else 0.0
            if item.count and value is None:
                raise ConfigError(
                    f"{item.entry}.{key} is not known, but {item.count:g} {item.what} are needed; "
                    "give it in a file of --catalogue"
                )
            found[item.what] = found.get(item.what, 0.0) + item.count * (value or 0.0)
        return found


def network_bill(topology: Built, *, switch: Switch | None, link: Link | None) -> Bill:
    """Switches, links and transceivers of a network (B2); without the hosts' own ports.

    Raises: ConfigError for switches with too few ports, or ports and links that are too slow."""
    parts, rate, items = topology.inventory, topology.network.rate, list[Item]()
    if parts.switches:
        if switch is None:
            raise ConfigError(f"{_PLACE}switch is missing: {parts.switches} are needed")
        if switch.ports_count < topology.radix:
            raise ConfigError(
                f"switch.{switch.name}.ports_count: {switch.ports_count:g} ports, but the network "
                f"needs {topology.radix} of each switch; a smaller radix or a larger switch fits"
            )
        _check_rate(f"switch.{switch.name}.port_rate", switch.port_rate, rate)
        items.append(Item("switches", switch, parts.switches))
    if link is None:
        raise ConfigError(f"{_PLACE}link is missing: {parts.links} are needed")
    if parts.links:
        _check_rate(f"link.{link.name}.rate", link.rate, rate)
    items.append(Item("links", link, parts.links, power=""))
    items.append(Item("transceivers", link, parts.transceivers, "", "transceiver_power"))
    return Bill(items)


def _check_rate(key: str, found: float, needed: float) -> None:
    if found < needed:
        raise ConfigError(
            f"{key}: {found * 8e-9:g} Gbit/s, but the network's ports have {needed * 8e-9:g} "
            "Gbit/s; as fast a one fits, or a slower network"
        )


def cluster_bill(
    machines: Sequence[Item], topology: Built | None = None, *, switch: Switch | None = None,
    link: Link | None = None,
) -> Bill:  # fmt: skip
    """Hosts with what is added to them, and the network between them. Raises ConfigError."""
    if topology is not None:
        return Bill([*machines, *network_bill(topology, switch=switch, link=link).items])
    if sum(each.count for each in machines if isinstance(each.part, Server)) > 1:
        raise ConfigError(
            "[topology] is missing: [cost] needs to know what the network between hosts is "
            "made of; kind = 'clos' with the radix of its switches would do"
        )
    return Bill(machines)


def rented_dollars_per_s(machines: Sequence[Item]) -> float:
    """Rent per second of devices with their part of host and network, and of hosts without devices
    (B3). Raises ConfigError if one of them cannot be rented."""
    total = 0.0
    for each in machines:
        server = each.part
        if not isinstance(server, Server):
            continue
        devices = each.count * int(server.devices_count)
        key = "device_rental" if devices else "rental"
        rent: float | None = getattr(server, key)
        if rent is None:
            raise ConfigError(
                f"server.{server.name}.{key} is not known; give it in a file of --catalogue "
                "or in [cost], which has device_rental and node_rental, or buy it"
            )
        total += (devices or each.count) * rent
    return total


def tokens_per_dollar(tokens_per_s: float, dollars_per_s: float) -> float:
    """B4. Raises ConfigError where nothing costs anything."""
    if not dollars_per_s > 0:
        raise ConfigError(f"dollars_per_s: {dollars_per_s!r} is not above zero; give prices")
    return tokens_per_s / dollars_per_s


# ---------------------------------------------------------------------- of a question


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The prices of a question's machines, bought or rented: docs/predict.md has the keys. Only a
    cluster of one host needs no [topology]."""

    server: Server
    nic: Nic | None = None
    nics: int = 0
    """Added to each worker's host, without what the server's price includes."""
    node_server: Server | None = None
    switch: Switch | None = None
    link: Link | None = None
    tariff: Tariff | None = None
    """None: rented."""


def make_costs(table: Mapping[str, Any], catalogue: Catalogue) -> Costs:
    """Costs of a table. Raises ConfigError, which names the key."""
    values.check_keys(_PLACE, table, _KEYS, () if "device_rental" in table else ("server",))
    known: dict[str, Any] = {}
    for key in (each for each in _ENTRIES if each in table):
        name = values.text_of(_PLACE, table, key)
        known[key] = catalogue.find(key.removeprefix("node_"), name, _PLACE + key)
    if "nics" in table:
        known["nics"] = values.whole_of(_PLACE, table, "nics")
    if ("nic" in known) != ("nics" in known):
        missing = "nics" if "nic" in known else "nic"
        raise ConfigError(f"{_PLACE}{missing} is missing: nic and nics go together")
    rented = values.flag_of(_PLACE, table, "rented") or any(key in table for key in _RENTALS)
    if not rented:
        return Costs(**known, tariff=_tariff(table))
    for key in _OF_WHAT_IS_BOUGHT:
        if key in table:
            raise ConfigError(f"{_PLACE}{key}: what is rented has none; leave it out")
    return Costs(**{**known, **_rented(table, known)})


def _rented(table: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Server]:
    """The servers whose rent the table has itself."""
    found = {}
    for owner, key, own, devices in (
        ("server", "device_rental", "device_rental", 1.0),
        ("node_server", "node_rental", "rental", 0.0),
    ):
        if key in table:
            rent = values.quantity_of(_PLACE + key, table[key], Dimension.DOLLARS_PER_S)
            server = known.get(owner) or Server(name=key, devices_count=devices)
            found[owner] = replace(server, **{own: rent})
    return found


def _tariff(table: Mapping[str, Any]) -> Tariff:
    for key in _TARIFF:
        if key not in table:
            raise ConfigError(
                f"{_PLACE}{key} is missing: what is bought has life_years, energy_price and pue; "
                "or write rented = true"
            )
    years = table["life_years"]
    if isinstance(years, bool) or not isinstance(years, int | float):
        raise ConfigError(f"{_PLACE}life_years: {years!r} is not a number of years")
    place = f"{_PLACE}energy_price"
    return Tariff(
        life_s=values.to_si(f"{_PLACE}life_years", years, "year", Dimension.SECONDS),
        pue=values.quantity_of(f"{_PLACE}pue", table["pue"], Dimension.RATIO),
        energy_price=values.quantity_of(place, table["energy_price"], Dimension.DOLLARS_PER_JOULE),
    )  # fmt: skip


def machines_of(
    costs: Costs, ranks: int, *, are_hosts: bool = False, nodes: int = 0, host: Host | None = None,
    host_devices: int | None = None,
) -> list[Item]:  # fmt: skip
    """Hosts of workers, optimizer nodes, and what is added to each. Raises ConfigError if counts
    are not whole.

    Ranks are devices, or hosts without any. `host` is each node; or where devices offload, that of
    so many devices."""
    each = 1 if are_hosts else int(costs.server.devices_count)
    if not each or ranks % each:
        raise ConfigError(
            f"{_PLACE}server: {ranks} devices are not a whole number of {costs.server.name}, "
            f"which has {each}; another server, or another number of devices fits"
        )
    if costs.tariff is not None and host_devices not in (None, each):
        raise ConfigError(
            f"{_PLACE}server: {costs.server.name} has {each} devices, but host.devices is "
            f"{host_devices}"
        )
    hosts = ranks // each
    found = [Item("hosts", costs.server, hosts)]
    if costs.nic is not None:
        found.append(Item("network cards", costs.nic, hosts * costs.nics))
    if nodes:
        if costs.node_server is None:
            raise ConfigError(
                f"{_PLACE}node_server is missing: {nodes} optimizer nodes take part; of what "
                "is rented node_rental would do"
            )
        found.append(Item("optimizer nodes", costs.node_server, nodes))
    elif costs.node_server is not None:
        raise ConfigError(
            f"{_PLACE}node_server, node_rental: nothing here has an optimizer node; leave them out"
        )
    if host is not None and host.disk is not None and host.disks:
        found.append(Item("disks", host.disk, (nodes or hosts) * host.disks))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Expense:
    """The cost of a question's machines."""

    dollars_per_s: float
    bill: Bill | None
    """None: rented."""


def expense(costs: Costs, machines: Sequence[Item], built: Built | None) -> Expense:
    """The cost of a second, and the bill (B1 to B3). Raises ConfigError."""
    tariff = costs.tariff
    if tariff is None:
        return Expense(dollars_per_s=rented_dollars_per_s(machines), bill=None)
    bill = cluster_bill(machines, built, switch=costs.switch, link=costs.link)
    dollars_per_s = bill.capex / tariff.life_s + bill.watts * tariff.pue * tariff.energy_price
    return Expense(dollars_per_s=dollars_per_s, bill=bill)


def cost_document(found: Expense, tokens_per_s: float, step_s: float | None) -> dict[str, Any]:
    """Dollars, watts and joules; of what is rented dollars alone."""
    bill, of_a_dollar = found.bill, tokens_per_dollar(tokens_per_s, found.dollars_per_s)
    said: dict[str, Any] = {
        "rented": bill is None, "dollars_per_h": HOUR_S * found.dollars_per_s,
        "dollars_per_million_tokens": 1e6 / of_a_dollar, "tokens_per_dollar": of_a_dollar,
    }  # fmt: skip
    if bill is None:
        return said
    said |= {
        "items": [
            {"what": identifier(each.what), "entry": each.entry, "count": each.count}
            for each in bill.items
        ],
        "capex": bill.capex, "capex_by_item": by_identifier(bill.by_item("price")),
        "watts": bill.watts, "watts_by_item": by_identifier(bill.by_item("power")),
        "joules_per_token": bill.watts / tokens_per_s,
    }  # fmt: skip
    if step_s is not None:
        said["joules_of_a_step"] = bill.watts * step_s  # B5
    return said


def cost_text(said: dict[str, Any]) -> list[str]:
    """The same for people."""
    how = "rented" if said["rented"] else "bought"
    lines = [
        f"{how}: {said['dollars_per_h']:,.2f} USD per hour, "
        f"{said['dollars_per_million_tokens']:,.3g} USD per million tokens, "
        f"{said['tokens_per_dollar']:,.0f} tokens per dollar"
    ]
    if said["rented"]:
        return lines
    lines += [
        f"to buy {said['capex']:,.0f} USD: {_by_item(said['capex_by_item'], ',.0f')}",
        f"power {said['watts'] / 1e3:,.2f} kW: {_by_item(said['watts_by_item'], ',.2f', 1e3)}",
    ]
    joules = [f"{said['joules_per_token']:,.3g} J per token"]
    if "joules_of_a_step" in said:
        joules.insert(0, f"{said['joules_of_a_step'] / 1e6:,.3g} MJ per step")
    return [*lines, f"energy: {', '.join(joules)}, without that of the site"]


def _by_item(amounts: dict[str, float], form: str, unit: float = 1.0) -> str:
    return ", ".join(
        f"{words(name)} {each / unit:{form}}" for name, each in amounts.items() if each
    )
