"""How floors are measured: the median of a few repeats, after one that warms up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK

MIB: Final = 1024 * 1024
REPEATS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Samples:
    """How much is moved, and for how long at least, to measure one floor."""

    copy_bytes: int
    """Of each of the two arrays."""
    disk_bytes: int
    """Of the temporary file."""
    seconds: float


QUICK: Final = Samples(copy_bytes=64 * MIB, disk_bytes=64 * MIB, seconds=0.1)
"""At the start of a run."""
THOROUGH: Final = Samples(copy_bytes=256 * MIB, disk_bytes=256 * MIB, seconds=0.5)
"""For `luwu estimate`."""


def repeated(work: Callable[[], object], seconds: float) -> float:
    """The median time of `work`, done at least twice and for `seconds`; the first warms up."""
    work()
    found: list[float] = []
    while len(found) < 2 or (sum(found) < seconds and len(found) < REPEATS_MAX):
        found.append(timed(work))
    return median(found)


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes, never nothing."""
    start_ns = SYSTEM_CLOCK.now_ns()
    work()
    return max(1, SYSTEM_CLOCK.now_ns() - start_ns) / 1e9


def run_all(pool: ThreadPoolExecutor, work: Callable[[Any], None], items: Sequence[Any]) -> None:
    """Do `work` for all items, in the threads of the pool. Raises what it raised."""
    for _ in pool.map(work, items):
        pass
