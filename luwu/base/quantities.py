"""Sizes, rates and times with units in the value: one parser for every flag and file.

    2GiB  512KiB  1.5MB        bytes; KiB, MiB, GiB are binary, kB, MB, GB decimal
    1gbit 40mbit 12.5GB/s      bytes per second; bits are decimal
    0.2ms 50us 3s 10min        nanoseconds

A bare number is rejected, except 0: `--chunk 4` could mean anything.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from luwu.base.errors import ConfigError

_DIGITS = re.compile(r"[0-9]{1,19}")
_NUMBER = re.compile(r"^\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z/]*)\s*$")

BYTES = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
BITS_PER_S = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9, "Tbit": 10**12}


def parse_bytes(text: str, *, name: str = "size") -> int:
    """Bytes of a text such as `2GiB`. Raises ConfigError."""
    return _scaled(text, BYTES, name, "512KiB, 4MiB or 2GB")


def parse_ns(text: str, *, name: str = "time") -> int:
    """Nanoseconds of a text such as `0.2ms`. Raises ConfigError."""
    return _scaled(text, NANOSECONDS, name, "50us, 0.2ms or 10s")


def parse_bytes_per_s(text: str, *, name: str = "rate") -> float:
    """Bytes per second of a text such as `1gbit` or `2GB/s`. Raises ConfigError."""
    if text.strip().lower().endswith("/s"):
        return float(_scaled(text.strip()[:-2], BYTES, name, "1gbit or 2GB/s"))
    return _scaled(text, BITS_PER_S, name, "1gbit or 2GB/s") / 8


def format_bytes(count: float) -> str:
    """A size for people: `1.50 GiB`; exact below 1 KiB."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """A short time for people, with three digits: `1.23 s`, `45.6 ms`, `7.89 us`."""
    if seconds == 0:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def format_duration(seconds: float) -> str:
    """A long time for people: `42 s`, `3 min 12 s`, `2 h 5 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _scaled(text: str, units: dict[str, int], name: str, examples: str) -> int:
    match = _NUMBER.match(text)
    if match is None:
        raise ConfigError(f"{name}: {text!r} is not a number with a unit; write {examples}")
    number, unit = match.groups()
    if unit == "" and Fraction(number) == 0:
        return 0
    scale = next((each for name, each in units.items() if name.lower() == unit.lower()), None)
    if scale is None:
        raise ConfigError(
            f"{name}: {text!r} has {'no unit' if not unit else f'the unknown unit {unit!r}'}; "
            f"write {examples}"
        )
    value = Fraction(number) * scale  # in floats, 0.07us would be no whole number of ns
    if value.denominator != 1:
        raise ConfigError(f"{name}: {text!r} is not a whole number of the smallest unit")
    return int(value)


def decimal(text: str) -> int | None:
    """The whole number of up to 19 digits 0 to 9; None if the text is none."""
    return int(text) if _DIGITS.fullmatch(text) else None


def real(text: str) -> float:
    """The number of a text in ASCII, such as `0.5` or `1e-3`; NaN if the text is none."""
    try:
        return float(text) if text.isascii() else math.nan
    except ValueError:
        return math.nan


def exact_size(count: int) -> str:
    """Bytes in the largest binary unit that leaves no remainder: `512KiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count % scale == 0:
            return f"{count // scale}{unit}"
    return f"{count}B"
