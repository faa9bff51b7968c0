"""Rates of a directory's disk, measured in a second or two on a temporary file that is removed."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.limits import MIB
from luwu.base.quantities import format_bytes, format_seconds
from switch_emu.node.plan import NodePlan
from switch_emu.store.direct_io import (
    BLOCK_BYTES,
    BlockFile,
    IoCounter,
    aligned_buffer,
    probe_direct_io,
)

FLUSHES: Final = 5
TURN_REQUESTS: Final = 1024
"""At most, in one turn of one rate, spread over the file. With pages of 48 KiB all 2,700 of a side
took 4 s of a processor and more, to say the same."""

# On a virtual disk whose rates over 4 GiB were 2.1 to 2.7 GB/s, a file of 64 MiB for a tenth of a
# second said 40 % more for pulls (its requests were too small), one of 256 MiB 5 % more or less; a
# minute later all of them may be a fifth lower. Medians of 3 rounds, in GB/s:
#
#     file        write   mixed   pulls    seconds to measure
#     64 MiB      2.6     2.3     3.0      0.6
#     256 MiB     2.4     2.3     2.2      1.3
#     1 GiB       2.5     2.3     2.1      4.2
#     4 GiB       2.7     2.4     2.1      15
FILE_BYTES_MIN: Final = 16 * MIB
FILE_BYTES_MAX: Final = 256 * MIB
SECONDS_MIN: Final = 0.1
"""Each rate is measured for this long at least."""
ROUNDS_MAX: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRates:
    """Rates of the directory that holds the state."""

    write_bytes_per_s: float
    """Rate for blocks that were written before, as in every step but the first two."""
    mixed_bytes_per_s: float
    """Read plus written, where each thread reads a page and writes one, as an update does."""
    pull_bytes_per_s: float
    """Reads of a third of a page, spread over the file, as pulls of weights make them."""
    flush_s: float
    requests_count: int
    """In flight at once."""
    request_bytes: int
    file_bytes: int
    """Size of the temporary file that was measured on."""
    reason: str
    """The access that was measured: direct I/O, or buffered and why."""
    free_bytes: int
    """Of the file system."""

    def seconds(self, read_bytes: int, written_bytes: int) -> float:
        """Seconds of reads and writes: as much as there is of both goes together, page by page, as
        in updates; further reads are pulls."""
        both = min(read_bytes, written_bytes)
        return (
            2 * both / self.mixed_bytes_per_s
            + (read_bytes - both) / self.pull_bytes_per_s
            + (written_bytes - both) / self.write_bytes_per_s
        )

    @property
    def text(self) -> str:
        """The rates in a line."""
        return (
            f"disk, measured: pulls {format_bytes(self.pull_bytes_per_s)}/s, writes "
            f"{format_bytes(self.write_bytes_per_s)}/s, both "
            f"{format_bytes(self.mixed_bytes_per_s)}/s, a flush {format_seconds(self.flush_s)} "
            f"({self.reason})"
        )


def disk_rates(
    directory: Path, plan: NodePlan, *, page_bytes: int, state_bytes: int
) -> DiskRates | None:
    """Rates of a directory, or of the nearest one above it that there is; None where no file of
    that size can be made there.

    Requests are as many and as long as the plan of a node makes them, over a file as large as the
    state, within limits.
    """
    directory = directory.absolute()
    place = next(each for each in (directory, *directory.parents) if each.is_dir())
    free_bytes = shutil.disk_usage(place).free
    file_bytes = min(FILE_BYTES_MAX, max(FILE_BYTES_MIN, state_bytes))
    try:
        with tempfile.TemporaryDirectory(prefix=".luwu-disk-", dir=place) as name:
            return _measure(Path(name) / "pages", plan, page_bytes, file_bytes, free_bytes)
    except OSError:
        return None


class _Pages:
    """The temporary file, and the requests of a node; each thread has a buffer of its own."""

    def __init__(self, file: BlockFile, side: int, request_bytes: int, pull_bytes: int) -> None:
        self._file, self._side = file, side
        self._request_bytes, self._pull_bytes = request_bytes, pull_bytes
        self._noise = os.urandom(MIB)
        self._local = threading.local()

    def begin(self) -> None:
        """Make the buffer of this thread."""
        self._local.buffer = buffer = aligned_buffer(self._request_bytes)
        buffer[:] = (self._noise * (len(buffer) // MIB + 1))[: len(buffer)]

    def write(self, offset: int) -> None:
        self._file.write(offset, self._local.buffer)

    def update(self, offset: int) -> None:
        """Read a page, and write the one of the other side."""
        self._file.read(offset, self._local.buffer)
        self.write(self._side + offset)

    def pull(self, offset: int) -> None:
        self._file.read(offset, self._local.buffer[: self._pull_bytes])

    def flush(self) -> None:
        self._file.write(0, self._local.buffer[:BLOCK_BYTES])
        self._file.flush()


def _measure(
    path: Path, plan: NodePlan, page_bytes: int, file_bytes: int, free_bytes: int
) -> DiskRates:
    threads_count = plan.updates_count
    page_bytes = _whole(page_bytes + BLOCK_BYTES - 1)
    request_bytes = _whole(min(plan.pages_together * page_bytes, file_bytes // 2 // threads_count))
    side = max(threads_count, file_bytes // 2 // request_bytes) * request_bytes
    pull_bytes = min(request_bytes, _whole(page_bytes // 3))
    with path.open("wb") as made:
        os.posix_fallocate(made.fileno(), 0, 2 * side)
    direct = probe_direct_io(path)
    file = BlockFile(path, direct, IoCounter(), synced=True)
    do = _Pages(file, side, request_bytes, pull_bytes)
    do.begin()
    requests, pulls = _spread(side, request_bytes), _spread(2 * side, pull_bytes)
    with (
        ThreadPoolExecutor(threads_count, initializer=do.begin) as pool,
        ThreadPoolExecutor(plan.reads_count, initializer=do.begin) as pullers,
    ):
        try:
            for offset in range(0, 2 * side, request_bytes):  # so that blocks are there
                do.write(offset)
            _run_all(pool, do.write, requests[:threads_count])  # makes the threads' buffers
            _run_all(pullers, do.pull, pulls[: plan.reads_count])
            do.flush()
            write_s, both_s, pull_s = _taking_turns(
                partial(_run_all, pool, do.write, requests),
                partial(_run_all, pool, do.update, requests),
                partial(_run_all, pullers, do.pull, pulls),
            )
            flush_s = median(_timed(do.flush) for _ in range(FLUSHES))
        finally:
            file.close()
    turn_bytes = len(requests) * request_bytes
    return DiskRates(
        write_bytes_per_s=turn_bytes / write_s, mixed_bytes_per_s=2 * turn_bytes / both_s,
        pull_bytes_per_s=len(pulls) * pull_bytes / pull_s, flush_s=flush_s,
        requests_count=threads_count, request_bytes=request_bytes, file_bytes=2 * side,
        reason=direct.reason, free_bytes=free_bytes,
    )  # fmt: skip


def _whole(nbytes: int) -> int:
    return max(BLOCK_BYTES, nbytes // BLOCK_BYTES * BLOCK_BYTES)


def _spread(nbytes: int, request_bytes: int) -> range:
    """Offsets of requests over so many bytes, of all of them or every few."""
    count = nbytes // request_bytes
    return range(0, count * request_bytes, -(-count // TURN_REQUESTS) * request_bytes)


def _taking_turns(*works: Callable[[], object]) -> list[float]:
    """Mean seconds of each, done in turn at least twice and for SECONDS_MIN each.

    In turn, so that a rate that drifts hits all alike; the mean, because a run pays for slow
    moments too. Nothing warms up.
    """
    totals = [0.0 for _ in works]
    rounds = 0
    while rounds < 2 or (sum(totals) < len(works) * SECONDS_MIN and rounds < ROUNDS_MAX):
        rounds += 1
        for index, work in enumerate(works):
            totals[index] += _timed(work)
    return [total / rounds for total in totals]


def _timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes, never nothing."""
    start_ns = SYSTEM_CLOCK.now_ns()
    work()
    return max(1, SYSTEM_CLOCK.now_ns() - start_ns) / 1e9


def _run_all(pool: ThreadPoolExecutor, work: Callable[[Any], None], items: Sequence[Any]) -> None:
    """Do `work` for all items, in the threads of the pool. Raises what it raised."""
    for _ in pool.map(work, items):
        pass
