"""Values as a user writes them, of flags, files and the environment alike: a parser for each kind.

Quantities with units are read by `quantities.py`, those of links by `links.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from luwu.base.errors import ConfigError, suggestion
from luwu.base.limits import CHUNK_BYTES_STEP, INT64_MAX, PAYLOAD_BYTES_MAX
from luwu.base.quantities import decimal, exact_size, parse_bytes, parse_ns, real
from luwu.base.tree import parse_ranks, ranges_text

Parser = Callable[[str, str], Any]
"""(text, name of the key for messages) -> value. Raises ConfigError."""


def whole(least: int, most: int | None = None) -> Parser:
    """A whole number within limits."""

    def parse(text: str, name: str) -> int:
        found = decimal(text.strip().replace("_", ""))
        if found is None or not least <= found <= (most or INT64_MAX):
            limits = f"from {least} to {most}" if most else f"of at least {least}"
            raise ConfigError(f"{name}: {text!r:.60} is not a whole number {limits}")
        return found

    return parse


def number(*, above_zero: bool) -> Parser:
    """A finite number, above zero or at least zero."""

    def parse(text: str, name: str) -> float:
        value = real(text)
        if not math.isfinite(value) or value < 0 or (above_zero and value == 0):
            kind = "a number above 0" if above_zero else "a number of at least 0"
            raise ConfigError(f"{name}: {text!r} is not {kind}")
        return value

    return parse


def one_of(*choices: str) -> Parser:
    """One of some words."""

    def parse(text: str, name: str) -> str:
        if text not in choices:
            known = ", ".join(choices)
            close = suggestion(text, choices)
            raise ConfigError(f"{name}: {text!r:.60} is not one of {known}{close}")
        return text

    return parse


def boolean(text: str, name: str) -> bool:
    """`true` or `false`."""
    if text not in ("true", "false"):
        raise ConfigError(f"{name}: {text!r} is neither true nor false")
    return text == "true"


def size(text: str, name: str) -> int:
    """Bytes with a unit, above zero."""
    count = parse_bytes(text, name=name)
    if count == 0:
        raise ConfigError(f"{name}: {text!r} must be more than nothing")
    return count


def size_or_auto(text: str, name: str) -> int | None:
    """Bytes with a unit; None for `auto`."""
    return None if text == "auto" else size(text, name)


def chunk_size(text: str, name: str) -> int | None:
    """Bytes of a chunk; None for `auto`."""
    count = size_or_auto(text, name)
    if count is not None and (count % CHUNK_BYTES_STEP or count > PAYLOAD_BYTES_MAX):
        nearest = max(1, min(count, PAYLOAD_BYTES_MAX) // CHUNK_BYTES_STEP) * CHUNK_BYTES_STEP
        raise ConfigError(
            f"{name}: {text} is not a multiple of {exact_size(CHUNK_BYTES_STEP)} up to "
            f"{exact_size(PAYLOAD_BYTES_MAX)}; give {exact_size(nearest)}"
        )
    return count


def seconds(text: str, name: str) -> float:
    """Seconds of a time with a unit, above zero."""
    value = parse_ns(text, name=name) / 1e9
    if value == 0:
        raise ConfigError(f"{name}: a wait of {text} would fail at once; give at least 1s")
    return value


def words(text: str, name: str) -> str:
    """Any text but none at all."""
    if not text.strip():
        raise ConfigError(f"{name} is empty; give a value, or leave it out")
    return text


def rank_ranges(text: str, name: str) -> str:
    """Different ranks, in order: `0-3,6`."""
    ranks = parse_ranks(text, name)
    if len(set(ranks)) != len(ranks):
        raise ConfigError(f"{name}: {text!r} names a rank twice; name each once")
    return ranges_text(ranks)


def path(text: str, name: str) -> Path:
    """A path; `~` is the home directory."""
    return Path(words(text, name)).expanduser()
