"""Waiting for what another thread or process brings about; a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable

from luwu.base.clock import SYSTEM_CLOCK, Clock, sleep


def is_soon(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether it comes true in time."""
    end_ns = SYSTEM_CLOCK.now_ns() + int(seconds * 1e9)
    while not condition():
        if SYSTEM_CLOCK.now_ns() > end_ns:
            return False
        sleep(0.001)
    return True


class ManualClock(Clock):
    """A clock that moves only by `advance`."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, delta_ns: int) -> None:
        """Move forward by `delta_ns` nanoseconds."""
        self._now_ns += delta_ns
