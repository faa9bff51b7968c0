"""Leftovers of a test outside of its own directories, and how they are found (I8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK, sleep

PATIENCE_S: Final = 2.0
"""Time for processes that are ending."""
_POLL_S: Final = 0.02


def until_empty(look: Callable[[], list[str]], limit_s: float = PATIENCE_S) -> list[str]:
    """Findings after `limit_s`; returns as soon as there are none."""
    end_ns = SYSTEM_CLOCK.now_ns() + int(limit_s * 1e9)
    while True:
        try:
            found = look()
        except FileNotFoundError as error:  # a folder was removed while it was listed
            found = [str(error)]
        if not found or SYSTEM_CLOCK.now_ns() >= end_ns:
            return found
        sleep(_POLL_S)
