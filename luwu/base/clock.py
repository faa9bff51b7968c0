"""The only place that reads a clock.

What waits takes a `Clock`: that of the system, or one that a test moves by hand. Times are integer
nanoseconds of the monotonic clock, which all processes of one host share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final


class Clock:
    """The monotonic clock of this host."""

    now_ns: Callable[[], int] = staticmethod(time.monotonic_ns)
    """Nanoseconds since an arbitrary fixed instant; never goes back."""


SYSTEM_CLOCK: Final = Clock()


def sleep(seconds: float) -> None:
    """Wait; for polling loops of supervisors only, never to synchronise."""
    time.sleep(seconds)


def unix_ns() -> int:
    """Wall time, for names and records; never for measuring."""
    return time.time_ns()


STARTS_APART: Final = 1_000_000
"""Between the numbers of two starts: one process may join several times."""


def new_incarnation(after: int = 0, now_ns: Callable[[], int] = unix_ns) -> int:
    """The number of a start of a member: larger than that of any earlier start.

    Wall time, since a rank may be started again on another host, or after its host was: monotonic
    clocks of two hosts, or of two boots, cannot be compared. Wall clocks are set back at times:
    `after` is the number of the start before this one, where that is known.
    """
    return max(now_ns(), after + STARTS_APART)


def local_time_text() -> str:
    """`HH:MM:SS.mmm` of the local wall clock, for log lines."""
    ns = unix_ns()
    return time.strftime("%H:%M:%S", time.localtime(ns // 10**9)) + f".{ns // 10**6 % 1000:03d}"


def utc_text() -> str:
    """`YYYY-MM-DDTHH:MM:SSZ`, for run records."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
