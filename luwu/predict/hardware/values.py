"""Values of keys, as the catalogue and people write them: numbers with units, in SI, names, counts;
and which keys there are.

    {value = 312, unit = "TFLOP/s"}     in files of the catalogue
    "100 Gbit/s"                        in what users write

A unit belongs to a dimension, and a key takes one dimension: a memory in Gbit/s is an error.
Prefixes are decimal; KiB, MiB, GiB are binary and of memory alone. Every function raises
ConfigError, which names the key; `place` goes before it: `node.`
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

from luwu.base.errors import ConfigError, suggestion
from luwu.base.quantities import BITS_PER_S, BYTES, NANOSECONDS


class Dimension(Enum):
    """The dimension of a number, and its SI unit."""

    OPERATIONS_PER_S = "FLOP/s"
    BYTES = "B"
    BYTES_PER_S = "B/s"
    SECONDS = "s"
    DOLLARS_PER_S = "USD/s"
    RATIO = "1"
    COUNT = "count"
    TOKENS = "tokens"


_UNITS: Final[dict[Dimension, dict[str, float]]] = {
    Dimension.OPERATIONS_PER_S: {
        "FLOP/s": 1.0, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15,
    },
    Dimension.BYTES: {unit: float(scale) for unit, scale in BYTES.items()} | {"PB": 1e15},
    Dimension.BYTES_PER_S: {
        **{f"{unit}/s": float(scale) for unit, scale in BYTES.items() if "i" not in unit},
        **{f"{unit}/s": scale / 8 for unit, scale in BITS_PER_S.items()},
    },
    Dimension.SECONDS: {unit: scale / 1e9 for unit, scale in NANOSECONDS.items()},
    Dimension.DOLLARS_PER_S: {"USD/h": 1 / 3600.0, "USD/s": 1.0},
    Dimension.RATIO: {"1": 1.0, "%": 0.01},
    Dimension.COUNT: {"count": 1.0},
    Dimension.TOKENS: {"tokens": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12},
}  # fmt: skip
_TEXT: Final = re.compile(r"\s*([+-]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(\S.*)?")
_BARE: Final = {Dimension.RATIO: "1", Dimension.COUNT: "count", Dimension.TOKENS: "tokens"}
"""Dimensions that need no unit."""


def units_of(dimension: Dimension) -> str:
    """The units that fit, for people."""
    return ", ".join(_UNITS[dimension])


def to_si(key: str, value: Any, unit: str, dimension: Dimension) -> float:
    """A number in the SI unit of its dimension. Raises ConfigError, which names the key."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(
            f"{key}: {value!r} is not a number; write {{value = 1.5, unit = {unit!r}}}"
        )
    if value < 0:
        raise ConfigError(f"{key}: {value!r} is below zero; give 0 or more")
    fits = _UNITS[dimension]
    if unit not in fits:
        other = next((d for d, units in _UNITS.items() if unit in units), None)
        why = "is unknown" if other is None else f"is one of {other.name.lower()}"
        raise ConfigError(
            f"{key}: the unit {unit!r} {why}, but this is in {dimension.name.lower()}: "
            f"{units_of(dimension)}{suggestion(unit, fits) if other is None else ''}"
        )
    return float(value) * fits[unit]


def quantity_of(key: str, text: Any, dimension: Dimension) -> float:
    """A text, a table, or a bare number where no unit is needed. Raises ConfigError."""
    bare = _BARE.get(dimension)
    if bare is not None and isinstance(text, int | float):
        return to_si(key, text, bare, dimension)
    if isinstance(text, dict):  # with whatever else is said of it
        if "value" not in text:
            raise ConfigError(f"{key}: a value is missing; write {{value = 1.5, unit = ...}}")
        unit = text.get("unit", bare)
        if not isinstance(unit, str):
            raise ConfigError(f"{key}: a unit is missing; it is one of {units_of(dimension)}")
        return to_si(key, text["value"], unit, dimension)
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None or (found[2] is None and bare is None):
        raise ConfigError(
            f"{key}: {text!r} is not a number with a unit; the units are {units_of(dimension)}"
        )
    return to_si(key, float(found[1].replace("_", "")), (found[2] or bare or "").strip(), dimension)


# ---------------------------------------------------------------------- keys, and other values


def check_keys(
    place: str, table: Mapping[str, Any], known: Iterable[str], needed: Iterable[str] = ()
) -> None:
    """Refuse what is not known, and what is missing. `place` goes before a key: `node.`"""
    names = list(known)
    for key in table:
        if key not in names:
            raise ConfigError(
                f"{place}{key} is unknown here{suggestion(key, names)}; keys are {', '.join(names)}"
            )
    for key in needed:
        if key not in table:
            raise ConfigError(f"{place}{key} is missing")


def check_choice(key: str, found: Any, known: Iterable[str]) -> None:
    """Refuse what is none of those known."""
    names = list(known)
    if found not in names:
        raise ConfigError(
            f"{key}: {found!r} is not one of {', '.join(names)}{suggestion(str(found), names)}"
        )


def text_of(place: str, table: Mapping[str, Any], key: str) -> str:
    """A name."""
    value = table[key]
    if not isinstance(value, str):
        raise ConfigError(f"{place}{key}: {value!r} is not a name")
    return value


def whole_of(place: str, table: Mapping[str, Any], key: str) -> int:
    """A count of at least 1."""
    value = table[key]
    if type(value) is not int or value < 1:
        raise ConfigError(f"{place}{key}: {value!r} is not a whole number above zero")
    return value


def flag_of(place: str, table: Mapping[str, Any], key: str) -> bool:
    """True or false; false where it is not there."""
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{place}{key}: {value!r} is neither true nor false")
    return value


def section_of(table: Mapping[str, Any], key: str, why: str) -> Mapping[str, Any]:
    """A part of a question in brackets; `why` says what it is needed for."""
    found = table.get(key)
    if not isinstance(found, dict):
        raise ConfigError(f"[{key}] is missing: {why}")
    return found


def optional_section_of(table: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """A part of a question in brackets, or None."""
    found = table.get(key)
    if key in table and not isinstance(found, dict):
        raise ConfigError(f"{key}: {found!r} is not a section; write [{key}] and its keys below")
    return found
