"""Timing of the disk: the mean of a few turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.limits import MIB

GIB: Final = 1024 * MIB
REPEATS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Samples:
    """The amount that is moved, and the least duration, to measure one rate."""

    disk_bytes: int
    """Bytes of the temporary file."""
    seconds: float


# On a virtual disk whose rates over 4 GiB were 2.1 to 2.7 GB/s, a file of 64 MiB for a tenth of a
# second said 40 % more for pulls (its requests were too small), one of 256 MiB 5 % more or less; a
# minute later all of them may be a fifth lower. Medians of 3 rounds, in GB/s:
#
#     file        read    write   mixed   pulls    seconds to measure
#     64 MiB      2.1     2.6     2.3     3.0      0.6
#     256 MiB     2.1     2.4     2.3     2.2      1.3
#     1 GiB       2.1     2.5     2.3     2.1      4.2
#     4 GiB       2.2     2.7     2.4     2.1      15
QUICK: Final = Samples(disk_bytes=256 * MIB, seconds=0.1)
"""At the end of a run, over fewer bytes if its state has fewer."""
SMALL_BYTES: Final = 16 * MIB
"""Over this many at least."""
THOROUGH: Final = Samples(disk_bytes=GIB, seconds=0.5)
"""For `luwu estimate`."""


def taking_turns(works: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """The mean time of each, done in turn at least twice and for `seconds` each.

    In turn, so that a rate that drifts hits all alike; the mean, because a run pays for slow
    moments too. Nothing warms up.
    """
    totals = [0.0 for _ in works]
    rounds = 0
    while rounds < 2 or (sum(totals) < len(works) * seconds and rounds < REPEATS_MAX):
        rounds += 1
        for index, work in enumerate(works):
            totals[index] += timed(work)
    return [total / rounds for total in totals]


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes, never nothing."""
    start_ns = SYSTEM_CLOCK.now_ns()
    work()
    return max(1, SYSTEM_CLOCK.now_ns() - start_ns) / 1e9


def run_all(pool: ThreadPoolExecutor, work: Callable[[Any], None], items: Sequence[Any]) -> None:
    """Do `work` for all items, in the threads of the pool. Raises what it raised."""
    for _ in pool.map(work, items):
        pass
