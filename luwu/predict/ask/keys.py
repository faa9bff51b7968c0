"""The keys of a question, of files and of one-line questions: `data/question_keys.toml` lists them.

`[topology]`, `[cost]` and `[arrivals]` have keys of their own. Flags are keys too, in place of a
file or over one; their names are matched whatever their case, and `64xh100-80` is `devices` and
`device`. Without a file, keys that are left out are assumed, and the answer lists them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

from luwu.base.errors import ConfigError
from luwu.predict.hardware import values
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.software import data, software

_DEVICES: Final = re.compile(r"([0-9]+)x(.+)")
Value: TypeAlias = str | int | float | bool
_FILE: Final = data("question_keys.toml")
SYSTEMS: Final[dict[str, str]] = {name: each["text"] for name, each in _FILE["systems"].items()}
_KINDS: Final = {name: ("all", name, *each["kinds"]) for name, each in _FILE["systems"].items()}
"""What a group of keys may name of a system."""
TRAINING: Final = [name for name, kinds in _KINDS.items() if "training" in kinds]
ALIASES: Final = {
    alias: name for name, each in _FILE["systems"].items() for alias in each.get("aliases", ())
}
"""Other names of systems."""
SECTIONS: Final[dict[str, str]] = {
    name: each["section"] for name, each in _FILE["systems"].items() if "section" in each
}
"""The section of the file that a system requires, such as `[node]`."""
_READERS: Final[dict[str, Callable[[str, Mapping[str, Any], str], Any]]] = {
    "whole": values.whole_of, "flag": values.flag_of, "other": lambda _, table, key: table[key],
}  # fmt: skip
"""Readers of values that are neither texts nor numbers with a unit."""
_ENTRIES: Final = ("model", "device", "network", "processor", "disk")
"""Kinds of which the value is an entry of the catalogue."""
_DIMENSIONS: Final = {each.name.lower(): each for each in values.Dimension}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionKey:
    """A key of a question, or of one of its sections."""

    name: str
    kind: str
    shape: str
    text: str
    section: str
    title: str
    """The heading under which help lists it."""
    systems: tuple[str, ...]
    is_needed: bool

    @property
    def place(self) -> str:
        """Its name with the section: `node.disks`."""
        return f"{self.section}.{self.name}" if self.section else self.name

    def read(self, table: Mapping[str, Any], catalogue: Catalogue) -> Any:
        """Its value: numbers in SI, names as what they name. Raises ConfigError."""
        if self.kind in _DIMENSIONS:
            return values.quantity_of(self.place, table[self.name], _DIMENSIONS[self.kind])
        before = f"{self.section}." if self.section else ""
        value = _READERS.get(self.kind, values.text_of)(before, table, self.name)
        if self.kind in _ENTRIES:
            return catalogue.find(self.kind, value, self.place)
        return software(value) if self.kind == "software" else value


@cache
def keys() -> tuple[QuestionKey, ...]:
    """All of them; a name that means two things is there twice."""
    found = []
    for group in _FILE["group"]:
        systems = tuple(name for name, kinds in _KINDS.items() if group["systems"] in kinds)
        needed, section = group.get("needed", ()), group.get("section", "")
        found += [
            QuestionKey(
                name=name, kind=kind, shape=shape, text=text, section=section,
                title=group["title"], systems=systems, is_needed=name in needed,
            )
            for name, kind, shape, text in group["keys"]
        ]  # fmt: skip
    return tuple(found)


@cache
def keys_of(system: str, section: str = "") -> Mapping[str, QuestionKey]:
    """The keys that a system takes, by name."""
    return {key.name: key for key in keys() if system in key.systems and key.section == section}


def read_keys(
    table: Mapping[str, Any], system: str, catalogue: Catalogue, section: str = ""
) -> dict[str, Any]:
    """The values of the keys of a table. Raises ConfigError, which names the key."""
    known, more = keys_of(system, section), list[str]()
    if not section:
        more += ["arrivals"] if system == "inference" else []
        more += ["topology"] if system in TRAINING else []
        more += ["cost", *([SECTIONS[system]] if system in SECTIONS else [])]
    needed = [name for name, key in known.items() if key.is_needed]
    values.check_keys(f"{section}." if section else "", table, [*known, *more], needed)
    return {name: key.read(table, catalogue) for name, key in known.items() if name in table}


def system_of(table: Mapping[str, Any]) -> str:
    """The system of a question, by its own name. Raises ConfigError."""
    names = [*SYSTEMS, *ALIASES]
    if "system" not in table:
        raise ConfigError(f"system is missing; one of {', '.join(names)}, or ask luwu plan for all")
    values.check_choice("system", table["system"], names)
    return ALIASES.get(table["system"], table["system"])


def value_of(text: str) -> Value:
    """A value as it is written on the command line: true, false, a number, or a text."""
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def table_of(flags: Mapping[str, str], catalogue: Catalogue) -> dict[str, Any]:
    """The table of flags by their names, such as `node.disks`. Raises ConfigError."""
    found: dict[str, Any] = {}
    for key in keys():
        if key.place not in flags:
            continue
        owner = found.setdefault(key.section, {}) if key.section else found
        text = flags[key.place]
        devices = _DEVICES.fullmatch(text) if key.place == "devices" else None
        if devices is not None:
            if "device" in flags:
                raise ConfigError(f"devices: {text!r} names a device too; leave out --device")
            found["device"] = _known("device", devices[2], catalogue)
            text = devices[1]
        value = text != "false" if key.kind == "flag" else value_of(text)
        owner[key.name] = _known(key.kind, value, catalogue)
    return found


def with_assumed(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table with what it leaves out, and that alone."""
    system = str(table.get("system"))
    known = _FILE["assumed"]
    assumed: dict[str, Any] = {}
    for owner in ("training", system) if system in TRAINING else (system,):
        assumed |= known.get(owner, {})
    if isinstance(assumed.get("batch"), int) and isinstance(table.get("devices"), int):
        assumed["batch"] *= table["devices"]
    whole, more = dict(table), dict[str, Any]()
    for key, value in assumed.items():
        own = table.get(key)
        if isinstance(value, dict) and isinstance(own or {}, dict):
            section = dict(own or {})
            more[key] = {name: each for name, each in value.items() if name not in section}
            whole[key] = {**more[key], **section}
        elif own is None:
            more[key] = whole[key] = value
    if "node" in more and "network" not in whole["node"]:
        more["node"]["network"] = table.get("network")  # whatever that will be in a sweep
    return whole, {key: value for key, value in more.items() if value != {}}


def assumed_text(assumed: Mapping[str, Any]) -> list[str]:
    """A line for people; none where nothing is assumed."""
    said = []
    for key, value in assumed.items():
        section = value if isinstance(value, dict) else {"": value}
        said += [f"{key}{'.' if name else ''}{name} {each}" for name, each in section.items()]
    return [f"assumed           {', '.join(said)}"] if said else []


def _known(kind: str, value: Any, catalogue: Catalogue) -> Any:
    """A name as it is known, where it differs in its case alone."""
    names = {"system": (*SYSTEMS, *ALIASES), "software": data("software.toml")}.get(kind)
    for name in catalogue.names(kind) if names is None else names:
        if name.casefold() == str(value).casefold():
            return ALIASES.get(name, name)
    return value
