"""Clocks: the system's, and the one tests move by hand."""

from __future__ import annotations

import re
import time

import pytest

from luwu.base.clock import SYSTEM_CLOCK, Clock, ManualClock, local_time_text, unix_ns, utc_text


def test_the_system_clock_is_monotonic() -> None:
    """Goal: nanoseconds of the clock that all processes of a host share, never backwards."""
    before = time.monotonic_ns()
    readings = [SYSTEM_CLOCK.now_ns() for _ in range(1000)]
    assert before <= readings[0]
    assert readings == sorted(readings)
    assert readings[-1] <= time.monotonic_ns()


def test_a_manual_clock_moves_when_told() -> None:
    """Goal: tests own the time."""
    clock = ManualClock(5)
    assert clock.now_ns() == clock.now_ns() == 5
    clock.advance(10)
    clock.advance(0)
    assert clock.now_ns() == 15
    with pytest.raises(ValueError, match="cannot go back: delta_ns=-1"):
        clock.advance(-1)
    assert clock.now_ns() == 15


def test_both_are_clocks() -> None:
    """Goal: what takes a `Clock` takes either."""
    clocks: list[Clock] = [SYSTEM_CLOCK, ManualClock()]
    assert all(isinstance(clock.now_ns(), int) for clock in clocks)


def test_texts() -> None:
    """Goal: fixed formats; the instant given, not the current one."""
    assert utc_text(0) == "1970-01-01T00:00:00Z"
    assert utc_text(1_700_000_000_999_999_999) == "2023-11-14T22:13:20Z"
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.007", local_time_text(1_700_000_000_007_999_999))
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d\d\d", local_time_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", utc_text())


def test_wall_time_is_in_nanoseconds() -> None:
    """Goal: the unit."""
    assert abs(unix_ns() - time.time_ns()) < 60 * 10**9
