"""`[cost]` of a question: what is bought or rented for it, and what that makes of tokens.

docs/predict.md has its keys; besides, `disk` and `disks` are added to each host (of what offloads,
[host] says them), `node_nic` and `node_nics` to each optimizer node, whose drives are those of
[node]. A price or power that is not known is an error that names it, as `server.H100x8.power`, to
be given in a file of --catalogue; nothing is taken to be free. Power is that at work, all of the
time. Only a cluster of one host needs no [topology].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.identifiers import by_identifier, identifier, words
from luwu.predict.hardware import units
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hardware import Disk, Host, Link, Nic, Server, Switch, Tariff
from luwu.predict.hardware.keys import check_keys, flag_of, text_of, wholes_of
from luwu.predict.hardware.units import Dimension
from luwu.predict.networks.choice import Built
from luwu.predict.networks.cost import (
    Bill,
    Hosts,
    cluster_bill,
    dollars_per_million_tokens,
    owned_dollars_per_s,
    rented_dollars_per_s,
    tokens_per_dollar,
)

_PLACE: Final = "cost."
_TARIFF: Final = ("life_years", "energy_price", "pue")
_COUNTS: Final = ("nics", "disks", "node_nics")
_ENTRIES: Final = ("server", "nic", "disk", "node_server", "node_nic", "switch", "link")
_RENTALS: Final = ("device_rental", "node_rental")
_KEYS: Final = (*_ENTRIES, *_COUNTS, *_TARIFF, "rented", *_RENTALS)
_OF_WHAT_IS_BOUGHT: Final = ("switch", "link", *_TARIFF)
HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The prices of a question's machines, bought or rented."""

    server: Server
    nic: Nic | None = None
    nics: int = 0
    disk: Disk | None = None
    disks: int = 0
    node_server: Server | None = None
    node_nic: Nic | None = None
    node_nics: int = 0
    switch: Switch | None = None
    link: Link | None = None
    tariff: Tariff | None = None
    """None: rented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The machines that a question needs."""

    ranks: int
    """Devices; of sockets, hosts."""
    are_hosts: bool = False
    """Ranks are hosts without devices."""
    nodes: int = 0
    host: Host | None = None
    """Of each node; or of the devices, where these offload."""
    host_devices: int | None = None
    """Devices of a host that offloads, by the question."""


def make_costs(table: Mapping[str, Any], catalogue: Catalogue) -> Costs:
    """Costs of a table. Raises ConfigError, which names the key."""
    check_keys(_PLACE, table, _KEYS, () if "device_rental" in table else ("server",))
    rented = flag_of(_PLACE, table, "rented") or any(key in table for key in _RENTALS)
    values: dict[str, Any] = {
        key: catalogue.find(key.removeprefix("node_"), text_of(_PLACE, table, key), _PLACE + key)
        for key in _ENTRIES
        if key in table
    }
    values |= wholes_of(_PLACE, table, _COUNTS)
    for part, count in (("nic", "nics"), ("disk", "disks"), ("node_nic", "node_nics")):
        if (part in values) != (count in values):
            missing = count if part in values else part
            raise ConfigError(f"{_PLACE}{missing} is missing: {part} and {count} go together")
    if rented:
        for key in _OF_WHAT_IS_BOUGHT:
            if key in table:
                raise ConfigError(f"{_PLACE}{key}: what is rented has none; leave it out")
        return Costs(**{**values, **_rented(table, values)})
    return Costs(**values, tariff=_tariff(table))


def _rented(table: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Server]:
    """The servers whose rent the table has itself."""
    found = {}
    for owner, key, own, devices in (
        ("server", "device_rental", "device_rental", 1.0),
        ("node_server", "node_rental", "rental", 0.0),
    ):
        if key in table:
            rent = units.parse(_PLACE + key, table[key], Dimension.DOLLARS_PER_S)
            server = values.get(owner) or Server(name=key, devices_count=devices)
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
        life_s=units.to_si(f"{_PLACE}life_years", years, "year", Dimension.SECONDS),
        pue=units.parse(f"{_PLACE}pue", table["pue"], Dimension.RATIO),
        energy_price=units.parse(place, table["energy_price"], Dimension.DOLLARS_PER_JOULE),
    )  # fmt: skip


def hosts_of(costs: Costs, place: Place) -> list[Hosts]:
    """Hosts of workers, and of optimizer nodes. Raises ConfigError if the counts are not whole."""
    each = int(costs.server.devices_count)
    if place.are_hosts:
        each = 1
    elif not each or place.ranks % each:
        raise ConfigError(
            f"{_PLACE}server: {place.ranks} devices are not a whole number of {costs.server.name}, "
            f"which has {each}; another server, or another number of devices fits"
        )
    if costs.tariff is not None and place.host_devices not in (None, each):
        raise ConfigError(
            f"{_PLACE}server: {costs.server.name} has {each} devices, but host.devices is "
            f"{place.host_devices}"
        )
    own = None if place.nodes else place.host
    disk, disks = costs.disk, costs.disks
    if own is not None:
        if own.disks and disks:
            raise ConfigError(f"{_PLACE}disk: [host] says the drives of hosts; leave it out")
        disk, disks = disk or own.disk, disks or own.disks
    found = [
        Hosts(
            server=costs.server, count=place.ranks // each, nic=costs.nic, nics=costs.nics,
            disk=disk, disks=disks, what="hosts",
        )
    ]  # fmt: skip
    if place.nodes and place.host is not None:
        if costs.node_server is None:
            raise ConfigError(
                f"{_PLACE}node_server is missing: {place.nodes} optimizer nodes take part; of what "
                "is rented node_rental would do"
            )
        found.append(
            Hosts(
                server=costs.node_server, count=place.nodes, nic=costs.node_nic,
                nics=costs.node_nics, disk=place.host.disk, disks=place.host.disks,
                what="optimizer nodes",
            )
        )  # fmt: skip
    elif costs.node_server is not None or costs.node_nic is not None:
        raise ConfigError(
            f"{_PLACE}node_server, node_nic, node_rental: nothing here has an optimizer node; "
            "leave them out"
        )
    return found


def bill_of(costs: Costs, hosts: list[Hosts], built: Built | None) -> Bill:
    """The bill of hosts and the network between them. Raises ConfigError."""
    if built is None:
        if sum(each.count for each in hosts) > 1:
            raise ConfigError(
                "[topology] is missing: [cost] needs to know what the network between hosts is "
                "made of; kind = 'clos' with the radix of its switches would do"
            )
        return cluster_bill(hosts)
    if built.inventory.switches and costs.switch is None:
        raise ConfigError(f"{_PLACE}switch is missing: {built.inventory.switches} are needed")
    if costs.link is None:
        raise ConfigError(f"{_PLACE}link is missing: {built.inventory.links} are needed")
    return cluster_bill(hosts, built, switch=costs.switch, link=costs.link)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expense:
    """The cost of a question's machines."""

    dollars_per_s: float
    bill: Bill | None
    """None: rented."""


def expense(costs: Costs, place: Place, built: Built | None) -> Expense:
    """The cost of a second, and the bill (B1 to B3). Raises ConfigError."""
    hosts = hosts_of(costs, place)
    if costs.tariff is None:
        return Expense(dollars_per_s=rented_dollars_per_s(hosts), bill=None)
    bill = bill_of(costs, hosts, built)
    return Expense(dollars_per_s=owned_dollars_per_s(bill, costs.tariff), bill=bill)


def cost_document(found: Expense, tokens_per_s: float, step_s: float | None) -> dict[str, Any]:
    """Dollars, watts and joules; of what is rented dollars alone."""
    said: dict[str, Any] = {
        "rented": found.bill is None,
        "dollars_per_h": HOUR_S * found.dollars_per_s,
        "dollars_per_million_tokens": dollars_per_million_tokens(tokens_per_s, found.dollars_per_s),
        "tokens_per_dollar": tokens_per_dollar(tokens_per_s, found.dollars_per_s),
    }
    if found.bill is None:
        return said
    capex = by_identifier(found.bill.capex_by_item())
    watts = by_identifier(found.bill.watts_by_item())
    said |= {
        "items": [
            {"what": identifier(each.what), "entry": each.entry, "count": each.count}
            for each in found.bill.items
        ],
        "capex": found.bill.capex, "capex_by_item": capex,
        "watts": found.bill.watts, "watts_by_item": watts,
        "joules_per_token": found.bill.watts / tokens_per_s,
    }  # fmt: skip
    if step_s is not None:
        said["joules_of_a_step"] = found.bill.watts * step_s  # B5
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
