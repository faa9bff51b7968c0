"""Keys of a question: which there are, which must be there, and what each holds.

Every function raises ConfigError, which names the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from luwu.base.errors import ConfigError, suggestion

SHARED: Final = ("topology", "cost")
"""Sections that every question may have."""


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


def wholes_of(place: str, table: Mapping[str, Any], keys: Iterable[str]) -> dict[str, int]:
    """The counts among some keys that are there."""
    return {key: whole_of(place, table, key) for key in keys if key in table}


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
