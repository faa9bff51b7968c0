"""Clocks of the system, and their texts."""

from __future__ import annotations

import re
import time
from datetime import datetime

from luwu.base.clock import SYSTEM_CLOCK, local_time_text, unix_ns, utc_text


def test_both_clocks_are_in_nanoseconds() -> None:
    """Goal: nanoseconds of the clock that all processes of a host share, and of the wall clock."""
    before = time.monotonic_ns()
    assert before <= SYSTEM_CLOCK.now_ns() <= time.monotonic_ns()
    assert abs(unix_ns() - time.time_ns()) < 60 * 10**9


def test_texts() -> None:
    """Goal: fixed formats of this instant."""
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d\d\d", local_time_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", utc_text())
    instant = datetime.fromisoformat(utc_text().replace("Z", "+00:00"))
    assert abs(instant.timestamp() - time.time()) < 60
