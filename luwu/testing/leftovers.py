"""Leftovers of a test outside of its own directories, and how they are found (I8)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK, sleep

PATIENCE_S: Final = 2.0
"""Time for processes that are ending."""
_POLL_S: Final = 0.02
_UNFINISHED: Final = ("*.partial", ".*.creating")
"""Files that are written beside their place and renamed: one that is there was never finished."""


def memory_files(pids: Iterable[int]) -> int:
    """The number of segments without a name (memfd) that the processes hold."""
    count = 0
    for pid in pids:
        try:
            for each in Path(f"/proc/{pid}/fd").iterdir():
                count += os.readlink(each).startswith("/memfd:")
        except OSError:
            continue
    return count


def unfinished_files(folder: Path) -> list[str]:
    """Files below a folder whose writing has begun and not ended."""
    return sorted(str(path) for pattern in _UNFINISHED for path in folder.rglob(pattern))


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
