"""The keys of a question, of files and of one-line questions: `data/question_keys.toml` lists them.

`read_keys` reads the values of a table; `[topology]`, `[cost]` and `[arrivals]` have keys of their
own, in files alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.predict.hardware import units
from luwu.predict.hardware.keys import SHARED, check_keys, flag_of, text_of, whole_of
from luwu.predict.hardware.software import data
from luwu.predict.hardware.units import Dimension

Value: TypeAlias = str | int | float | bool
TRAINING: Final = {
    "luwu": "weights and optimizer state at a node, sums in the network",
    "zero3": "states sharded over all devices: ZeRO-3, FSDP",
    "zero-offload": "the same, with optimizer state in the memory of hosts",
    "zero-infinity": "the same, with optimizer state on drives of hosts",
    "3d": "tensor, pipeline, context and data parallel ranks",
    "ddp": "a whole model on each device, gradients reduced among them",
    "atp": "the same, gradients summed by a switch",
}
INFERENCE: Final = {
    "inference": "prefill and decode on devices, by tensor and pipeline ranks",
    "inference-sockets": "the same on processors, whose sockets are tensor ranks",
}
SYSTEMS: Final = {**TRAINING, **INFERENCE}
SECTIONS: Final = {"luwu": "node", "zero-offload": "host", "zero-infinity": "host"}
"""The section of the file that a system requires, such as `[node]`."""
_MORE_SECTIONS: Final = {"inference": ("arrivals",)}
"""Sections that a system may have in addition."""
_SYSTEMS_OF: Final[dict[str, tuple[str, ...]]] = {
    "all": tuple(SYSTEMS), "training": tuple(TRAINING), "serving": tuple(INFERENCE),
    "devices": (*TRAINING, "inference"), "offload": ("zero-offload", "zero-infinity"),
}  # fmt: skip
"""Systems by the words of the file, besides their own names."""
_READERS: Final[dict[str, Callable[[str, Mapping[str, Any], str], Any]]] = {
    "whole": whole_of, "flag": flag_of, "other": lambda _, table, key: table[key],
}  # fmt: skip
"""Readers of values that are neither texts nor numbers with a unit."""
_DIMENSIONS: Final = {each.name.lower(): each for each in Dimension}
"""Kinds of numbers with a unit."""


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

    def read(self, table: Mapping[str, Any]) -> Any:
        """Its value; numbers in SI. Raises ConfigError."""
        dimension = _DIMENSIONS.get(self.kind)
        if dimension is not None:
            return units.parse(self.place, table[self.name], dimension)
        before = f"{self.section}." if self.section else ""
        return _READERS.get(self.kind, text_of)(before, table, self.name)


@cache
def keys() -> tuple[QuestionKey, ...]:
    """All of them; a name that means two things is there twice."""
    found = []
    for group in data("question_keys.toml")["group"]:
        systems = _SYSTEMS_OF.get(group["systems"], (group["systems"],))
        needed, section = group.get("needed", ()), group.get("section", "")
        for name, kind, shape, text in group["keys"]:
            found.append(
                QuestionKey(
                    name=name, kind=kind, shape=shape, text=text, section=section,
                    title=group["title"], systems=systems, is_needed=name in needed,
                )
            )  # fmt: skip
    return tuple(found)


@cache
def keys_of(system: str, section: str = "") -> Mapping[str, QuestionKey]:
    """The keys that a system takes, by name."""
    return {
        key.name: key for key in keys() if system in key.systems and key.section == section
    }  # fmt: skip


def read_keys(table: Mapping[str, Any], system: str, section: str = "") -> dict[str, Any]:
    """The values of the keys of a table. Raises ConfigError for a key that is unknown or missing,
    and for a value that is none of its kind."""
    known, more = keys_of(system, section), []
    if not section:
        more = [*_MORE_SECTIONS.get(system, ()), *SHARED]
        more += [SECTIONS[system]] if system in SECTIONS else []
    needed = [name for name, key in known.items() if key.is_needed]
    check_keys(f"{section}." if section else "", table, [*known, *more], needed)
    return {name: key.read(table) for name, key in known.items() if name in table}


def system_of(table: Mapping[str, Any]) -> str:
    """The system of a question. Raises ConfigError."""
    system = table.get("system")
    if not isinstance(system, str) or system not in SYSTEMS:
        raise ConfigError(
            f"system: {system!r} is not one of {', '.join(SYSTEMS)}"
            f"{suggestion(str(system), SYSTEMS)}"
        )
    return str(system)


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
