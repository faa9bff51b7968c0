"""The catalogue of hardware and models: files of data, and those that a user adds.

    [device.A100-80]
    bf16 = {value = 312, unit = "TFLOP/s", source = "datasheet", tag = "read", date = "2026-10-01"}

    [device.A100-80.matmul_bf16]            a measured curve
    sizes = [1024, 2048]
    rates = [119, 222]
    unit = "TFLOP/s"
    source = "..."

Every number has a source, a date, and a tag: how much it can be trusted. A user's file has the same
form; what it says of a name that is known replaces single numbers, and `like = "A100-80"` takes the
rest from another entry. What is unknown, misspelt or of another dimension is an error that names
the key.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar

from luwu.base.errors import ConfigError, suggestion
from luwu.base.foreign import read_toml
from luwu.predict.hardware import units
from luwu.predict.hardware.curves import Curve
from luwu.predict.hardware.hardware import (
    KINDS,
    Device,
    Disk,
    Link,
    Network,
    Nic,
    Processor,
    Server,
    Switch,
    Tariff,
    keys_of,
)
from luwu.predict.hardware.model import Transformer
from luwu.predict.hardware.model_config import CONFIG_SUFFIX, read_model_config
from luwu.predict.hardware.units import Dimension

Entry = TypeVar("Entry")

TAGS: Final = ("read", "stated", "paper", "derived", "memory", "assumed")
"""read in its source; stated by a document that we know; published of the system we reproduce;
computed from others; from memory, to be checked; assumed."""
_ABOUT: Final = ("source", "tag", "date")
_MODEL: Final = "model"
_LIKE_MAX: Final = 8
"""Entries that are like one another."""


@dataclass(frozen=True, slots=True)
class Known:
    """Where a number comes from."""

    source: str
    tag: str
    date: str


@dataclass(slots=True)
class Catalogue:
    """Entries by kind and name."""

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    """`device.A100-80.bf16` -> where it comes from."""

    def device(self, name: str, key: str = "device") -> Device:
        return self._find("device", name, key, Device)

    def network(self, name: str, key: str = "network") -> Network:
        return self._find("network", name, key, Network)

    def disk(self, name: str, key: str = "disk") -> Disk:
        return self._find("disk", name, key, Disk)

    def processor(self, name: str, key: str = "processor") -> Processor:
        return self._find("processor", name, key, Processor)

    def switch(self, name: str, key: str = "switch") -> Switch:
        return self._find("switch", name, key, Switch)

    def link(self, name: str, key: str = "link") -> Link:
        return self._find("link", name, key, Link)

    def nic(self, name: str, key: str = "nic") -> Nic:
        return self._find("nic", name, key, Nic)

    def server(self, name: str, key: str = "server") -> Server:
        return self._find("server", name, key, Server)

    def tariff(self, name: str, key: str = "tariff") -> Tariff:
        return self._find("tariff", name, key, Tariff)

    def model(self, name: str, key: str = "model") -> Transformer:
        """An entry, or the model of a `config.json`."""
        if name.endswith(CONFIG_SUFFIX):
            return read_model_config(Path(name))
        return self._find(_MODEL, name, key, Transformer)

    def names(self, kind: str) -> list[str]:
        """Names of all entries of a kind."""
        return sorted(self.entries.get(kind, {}))

    def _find(self, kind: str, name: str, key: str, expected: type[Entry]) -> Entry:
        found = self.entries.get(kind, {}).get(name)
        if found is None:
            names = self.names(kind)
            raise ConfigError(
                f"{key}: no {kind} {name!r} is known{suggestion(name, names)}; known are "
                f"{', '.join(names) or 'none'}, and what you add by --catalogue FILE"
            )
        assert isinstance(found, expected)
        return found


def load(*more: Path) -> Catalogue:
    """The package's own catalogue, then files of the user. Raises ConfigError."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for resource in sorted(_own_files(), key=lambda each: each.name):
        _merge(tables, tomllib.loads(resource.read_text(encoding="utf-8")), resource.name)
    for path in more:
        _merge(tables, read_toml(path, "catalogue"), str(path))
    catalogue = Catalogue()
    for kind, entries in tables.items():
        catalogue.entries[kind] = {
            name: _made(catalogue, kind, name, _with_like(kind, name, entries)) for name in entries
        }
    return catalogue


def _own_files() -> list[Any]:
    data = resources.files("luwu.predict") / "data" / "catalogue"
    return [each for each in data.iterdir() if each.name.endswith(".toml")]


def _merge(
    tables: dict[str, dict[str, dict[str, Any]]], more: Mapping[str, Any], file: str
) -> None:
    kinds = [*KINDS, _MODEL]
    for kind, entries in more.items():
        if kind not in kinds or not isinstance(entries, dict):
            raise ConfigError(
                f"{file}: [{kind}] is not a kind of entry{suggestion(kind, kinds)}; kinds are "
                f"{', '.join(kinds)}"
            )
        for name, entry in entries.items():
            if not isinstance(entry, dict):
                raise ConfigError(f"{file}: {kind}.{name} is not a table of numbers")
            tables.setdefault(kind, {}).setdefault(name, {}).update(entry)


def _with_like(kind: str, name: str, entries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The numbers of an entry, over those of the entry that it is like."""
    entry, seen = entries[name], [name]
    while (like := entry.get("like")) is not None:
        if (
            not isinstance(like, str)
            or like not in entries
            or like in seen
            or len(seen) > _LIKE_MAX
        ):
            raise ConfigError(
                f"{kind}.{name}.like: no other {kind} {like!r} is known"
                f"{suggestion(str(like), entries)}"
            )
        seen.append(like)
        entry = {**entries[like], **{k: v for k, v in entry.items() if k != "like"}}
        if "like" in entries[like]:
            entry["like"] = entries[like]["like"]
    return entry


def _made(catalogue: Catalogue, kind: str, name: str, entry: Mapping[str, Any]) -> Any:
    if kind == _MODEL:
        return Transformer.parse(f"{kind}.{name}", name, entry)
    keys = keys_of(KINDS[kind])
    values: dict[str, Any] = {}
    for name_of_key, value in entry.items():
        place, key = f"{kind}.{name}.{name_of_key}", keys.get(name_of_key)
        if key is None:
            raise ConfigError(
                f"{place} is unknown{suggestion(name_of_key, keys)}; a {kind} has {', '.join(keys)}"
            )
        if len(key.dimensions) == 2:
            values[key.name] = _curve(place, value, *key.dimensions)
        else:
            values[key.name] = units.parse(place, value, key.dimensions[0])
        catalogue.known[place] = _about(place, value)
    for key in keys.values():
        if key.is_required and key.name not in values:
            fits = units.units_of(key.dimensions[0])
            raise ConfigError(f"{kind}.{name}.{key.name} is missing; give it in one of {fits}")
    return KINDS[kind](name=name, **values)


def _curve(place: str, table: Any, size: Dimension, rate: Dimension) -> Curve:
    if not isinstance(table, dict) or not {"sizes", "rates", "unit"} <= table.keys():
        raise ConfigError(f"{place}: a curve needs sizes, rates and a unit")
    size_unit = table.get("size_unit", size.value)
    sizes = [units.to_si(f"{place}.sizes", value, size_unit, size) for value in table["sizes"]]
    rates = [units.to_si(f"{place}.rates", each, table["unit"], rate) for each in table["rates"]]
    try:
        return Curve(place, tuple(sizes), tuple(rates))
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc


def _about(place: str, value: Any) -> Known:
    """Source, tag and date; a user's own number may come without."""
    table = value if isinstance(value, dict) else {}
    source, tag, date = (table.get(name) for name in _ABOUT)
    if tag is not None and tag not in TAGS:
        raise ConfigError(f"{place}.tag: {tag!r} is not one of {', '.join(TAGS)}")
    if date is not None:
        try:
            datetime.date.fromisoformat(str(date))
        except ValueError as exc:
            raise ConfigError(f"{place}.date: {date!r} is not a date; write 2026-11-22") from exc
    return Known(str(source or "given by the user"), str(tag or "stated"), str(date or ""))
