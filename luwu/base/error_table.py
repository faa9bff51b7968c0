"""Meanings of all error codes, from `error_table.toml`: for `luwu explain` and docs/errors.md."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError, suggestion

TABLE: Final = Path(__file__).with_name("error_table.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The meaning of one code."""

    code: str
    title: str
    meaning: str
    causes: tuple[str, ...]
    next: tuple[str, ...]


@cache
def entries() -> dict[str, Entry]:
    """All entries by code, in the order of the file."""
    document = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {
        code: Entry(
            code=code,
            title=row["title"],
            meaning=row["meaning"],
            causes=tuple(row["causes"]),
            next=tuple(row["next"]),
        )
        for code, row in document.items()
    }


def entry(code: str) -> Entry:
    """The entry of a code, however it is written. Raises ConfigError."""
    known = entries()
    found = known.get(code.strip().upper())
    if found is None:
        close = suggestion(code.strip().upper(), known)
        raise ConfigError(
            f"no error has the code {code!r}{close or '; luwu explain lists all'}", code="E201"
        )
    return found
