"""Sizes, times and rates with units in the value."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes, parse_bytes, parse_bytes_per_s, parse_ns

FIXED = settings(derandomize=True, deadline=None, max_examples=200)


QUANTITIES: dict[Any, dict[str, float]] = {
    parse_bytes: {
        "2GiB": 2 * 2**30, "512KiB": 2**19, "1.5MB": 1_500_000, "0": 0, "0.0": 0, "7B": 7,
        "3 kb": 3000, "  1TiB ": 2**40, "1tb": 10**12, "0.5KiB": 512, "4.35GB": 4_350_000_000,
        "0KiB": 0,
    },
    parse_ns: {
        "0.2ms": 200_000, "50us": 50_000, "3s": 3 * 10**9, "10min": 600 * 10**9,
        "1h": 3600 * 10**9, "1ns": 1, "0": 0, "0.07us": 70, "0.000000003s": 3,
    },
    parse_bytes_per_s: {
        "1gbit": 125e6, "40mbit": 5e6, "12.5GB/s": 12.5e9, "2 GiB/s": 2.0 * 2**30, "1bit": 0.125,
        "0": 0.0, "0/s": 0.0, "100Gbit": 12.5e9,
    },
}  # fmt: skip


@pytest.mark.parametrize("parse", QUANTITIES)
def test_quantities(parse: Any) -> None:
    """Goal: KiB is 1,024 and kB 1,000, upper or lower case; times are exact decimals: in floats
    0.07us is no whole number of nanoseconds; bits are decimal and an eighth of a byte."""
    assert {text: parse(text) for text in QUANTITIES[parse]} == QUANTITIES[parse]


@FIXED
@given(
    number=st.decimals(0, 10**9, places=3, allow_nan=False, allow_infinity=False),
    unit=st.sampled_from([("kB", 10**3), ("MB", 10**6), ("GB", 10**9), ("KiB", 2**10)]),
)
def test_exact_or_refused(number: Decimal, unit: tuple[str, int]) -> None:
    """I6. Goal: no value is rounded: the decimal that was written, or a refusal."""
    name, scale = unit
    value = number * scale
    if value == int(value):
        assert parse_bytes(f"{number}{name}") == int(value)
    else:
        with pytest.raises(ConfigError, match="not a whole number"):
            parse_bytes(f"{number}{name}")


@pytest.mark.parametrize(
    "text",
    ["", " ", "4", "4.0", "GiB", "-1GiB", "+1GiB", "1e3MB", "1,5MB", "1.MB", ".5MB", "1GiBs",
     "1 G B", "nan", "inf", "0x10B", "1/s", "2**3B", "1MB\0", "٣MB", "9" * 400 + "GB",
     "1." + "0" * 5000 + "MB"],
)  # fmt: skip
def test_what_is_not_a_quantity(text: str) -> None:
    """I6. Goal: a bare number, or anything else, is refused with examples; never guessed."""
    for parse in (parse_bytes, parse_ns, parse_bytes_per_s):
        with pytest.raises(ConfigError, match="write "):
            parse(text, name="--chunk")


def test_the_refusal_names_the_flag() -> None:
    """I6. Goal: name, value and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        parse_bytes("4", name="--chunk")
    assert str(caught.value) == "--chunk: '4' has no unit; write 512KiB, 4MiB or 2GB"
    with pytest.raises(ConfigError, match="has the unknown unit 'ms'"):
        parse_bytes("4ms")
    with pytest.raises(ConfigError, match="is not a whole number of the smallest unit"):
        parse_ns("0.5ns")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536 * 2**20, "1.50 GiB"),
     (2**40, "1.00 TiB"), (5 * 2**20, "5.00 MiB")],
)  # fmt: skip
def test_format(count: int, text: str) -> None:
    """Goal: a size for people."""
    assert format_bytes(count) == text
