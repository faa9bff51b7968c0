"""Timing of floors: the median of a few repeats, after one that warms up."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, Literal

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.limits import MIB

GIB: Final = 1024 * MIB
REPEATS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Samples:
    """The amount that is moved, and the least duration, to measure one floor."""

    copy_bytes: int
    """Bytes of each of the two arrays."""
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
QUICK: Final = Samples(copy_bytes=64 * MIB, disk_bytes=256 * MIB, seconds=0.1)
"""At the end of a run, over fewer bytes if its state has fewer."""
SMALL_BYTES: Final = 16 * MIB
"""Over this many at least."""
THOROUGH: Final = Samples(copy_bytes=256 * MIB, disk_bytes=GIB, seconds=0.5)
"""For `luwu estimate`."""
LONG: Final = Samples(copy_bytes=256 * MIB, disk_bytes=4 * GIB, seconds=3.0)
"""For a benchmark of the estimate: longer than a moment in which a shared disk is fast."""


def repeated(work: Callable[[], object], seconds: float) -> float:
    """The median time of `work`, done at least twice and for `seconds`; the first warms up."""
    work()
    found: list[float] = []
    while len(found) < 2 or (sum(found) < seconds and len(found) < REPEATS_MAX):
        found.append(timed(work))
    return median(found)


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


def cpu_seconds(of: Literal["thread", "process"] = "process") -> float:
    """Processor time of the calling thread, or of all threads of this process, so far."""
    usage = resource.getrusage(resource.RUSAGE_THREAD if of == "thread" else resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run_all(pool: ThreadPoolExecutor, work: Callable[[Any], None], items: Sequence[Any]) -> None:
    """Do `work` for all items, in the threads of the pool. Raises what it raised."""
    for _ in pool.map(work, items):
        pass
