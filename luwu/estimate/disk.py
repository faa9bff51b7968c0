"""Rates of a directory's disk, measured on a temporary file that is always removed."""

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

FLUSHES: Final = 5
TURN_REQUESTS: Final = 1024
"""At most, in one turn of one rate, spread over the file. With pages of 48 KiB all 2,700 of a side
took 4 s of a processor and more, to say the same."""
FILL_BYTES: Final = MIB
"""Written at once where blocks are only to be there."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRates:
    """Rates of the directory that holds the state."""

    read_bytes_per_s: float
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
    pulls_count: int
    """Pulls in flight at once."""
    pull_request_bytes: int
    file_bytes: int
    """Size of the temporary file that was measured on."""
    reason: str
    """The access that was measured: direct I/O, or buffered and why."""
    free_bytes: int
    """Of the file system."""

    def seconds(self, read_bytes: int, written_bytes: int) -> float:
        """Seconds of reads and writes that go together, page by page, as in updates."""
        both = 2 * min(read_bytes, written_bytes)
        reads, writes = read_bytes - both // 2, written_bytes - both // 2
        return (
            both / self.mixed_bytes_per_s
            + reads / self.read_bytes_per_s
            + writes / self.write_bytes_per_s
        )

    @property
    def text(self) -> str:
        """The rates in a line."""
        return (
            f"disk, measured: reads {format_bytes(self.read_bytes_per_s)}/s, writes "
            f"{format_bytes(self.write_bytes_per_s)}/s, both "
            f"{format_bytes(self.mixed_bytes_per_s)}/s, a flush {format_seconds(self.flush_s)} "
            f"({self.reason})"
        )


def existing_directory(path: Path) -> Path:
    """The directory, or the nearest one above it that there is."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.is_dir())


def disk_rates(
    directory: Path, *, page_bytes: int, threads_count: int, pulls_count: int, samples: Samples,
    pages_together: int = 1,
) -> DiskRates | None:  # fmt: skip
    """Rates of a directory; None where no file of that size can be made there.

    `threads_count` requests are under way at once, for `pages_together` pages each, and
    `pulls_count` pulls, each of a page's weights.
    """
    place = existing_directory(directory)
    free_bytes = shutil.disk_usage(place).free
    try:
        with tempfile.TemporaryDirectory(prefix=".luwu-disk-", dir=place) as name:
            return _measure(
                Path(name),
                free_bytes,
                (page_bytes, pages_together),
                (threads_count, pulls_count),
                samples,
            )
    except OSError:
        return None


class _Requests:
    """Reads and writes of the temporary file; each thread has a buffer of its own."""

    def __init__(self, file: Any, *, pages: int, page_bytes: int, pull_bytes: int) -> None:
        self._file, self._pages = file, pages
        self._page_bytes, self._pull_bytes = page_bytes, pull_bytes
        self._noise = os.urandom(min(page_bytes, MIB))
        self._local = threading.local()

    def buffer(self) -> memoryview:
        """A page's part of this thread's buffer."""
        return self._whole_buffer()[: self._page_bytes]

    def read(self, page: int) -> None:
        self._file.read(page * self._page_bytes, self.buffer())

    def write(self, page: int) -> None:
        self._file.write(page * self._page_bytes, self.buffer())

    def pull(self, offset: int) -> None:
        self._file.read(offset, self._whole_buffer()[: self._pull_bytes])

    def fill(self, file_bytes: int) -> None:
        """Write all of the file once."""
        from switch_emu.store.direct_io import aligned_buffer

        block = aligned_buffer(FILL_BYTES)
        block[:] = (self._noise * (FILL_BYTES // len(self._noise) + 1))[:FILL_BYTES]
        for offset in range(0, file_bytes, FILL_BYTES):
            self._file.write(offset, block[: min(FILL_BYTES, file_bytes - offset)])

    def both(self, page: int) -> None:
        """Read a page, and write the one of the other side, as an update does."""
        self.read(page)
        self.write(self._pages + page)

    def _whole_buffer(self) -> memoryview:
        from switch_emu.store.direct_io import aligned_buffer

        if not hasattr(self._local, "buffer"):
            size = max(self._page_bytes, self._pull_bytes)
            self._local.buffer = aligned_buffer(size)
            self._local.buffer[:] = (self._noise * (size // len(self._noise) + 1))[:size]
        found: memoryview = self._local.buffer
        return found


def _sizes(
    page_bytes: int, pages_together: int, threads_count: int, file_bytes: int
) -> tuple[int, int, int]:
    """Bytes of a request, bytes of a pull, and requests on each side, in whole blocks."""
    from switch_emu.store.direct_io import BLOCK_BYTES

    page_bytes = max(BLOCK_BYTES, -(-page_bytes // BLOCK_BYTES) * BLOCK_BYTES)
    most = file_bytes // (2 * threads_count) // BLOCK_BYTES * BLOCK_BYTES
    request_bytes = max(BLOCK_BYTES, min(pages_together * page_bytes, most))
    requests = max(threads_count, file_bytes // 2 // request_bytes)
    most = 2 * requests * request_bytes
    pull_bytes = max(BLOCK_BYTES, min(page_bytes // 3, most) // BLOCK_BYTES * BLOCK_BYTES)
    return request_bytes, pull_bytes, requests


def _measure(
    folder: Path,
    free_bytes: int,
    request: tuple[int, int],
    counts: tuple[int, int],
    samples: Samples,
) -> DiskRates:
    from switch_emu.store.direct_io import BLOCK_BYTES, BlockFile, IoCounter, probe_direct_io

    threads_count, pulls_count = counts
    page_bytes, pull_bytes, pages = _sizes(*request, threads_count, samples.disk_bytes)
    side_bytes = pages * page_bytes
    path = folder / "pages"
    with path.open("wb") as made:
        os.posix_fallocate(made.fileno(), 0, 2 * side_bytes)
    pulls_per_turn = min(TURN_REQUESTS, 3 * max(pages, 2 * pulls_count))
    pulls = _pull_offsets(2 * side_bytes, pull_bytes, pulls_per_turn)
    stride = -(-pages // TURN_REQUESTS)
    chosen = range(0, pages, stride)
    turn_bytes = len(chosen) * page_bytes
    direct = probe_direct_io(path)
    file = BlockFile(path, direct, IoCounter(), synced=True)
    do = _Requests(file, pages=pages, page_bytes=page_bytes, pull_bytes=pull_bytes)
    with ThreadPoolExecutor(threads_count) as pool, ThreadPoolExecutor(pulls_count) as pullers:
        try:
            do.fill(2 * side_bytes)  # from the second time on, blocks are there
            run_all(pool, do.write, chosen[:threads_count])  # makes their buffers
            run_all(pullers, do.pull, pulls[: 2 * pulls_count])  # makes their buffers
            file.flush()
            read_s, write_s, both_s, pull_s = taking_turns(
                (
                    partial(run_all, pool, do.read, chosen),
                    partial(run_all, pool, do.write, [pages + page for page in chosen]),
                    partial(run_all, pool, do.both, chosen),
                    partial(run_all, pullers, do.pull, pulls),
                ),
                samples.seconds,
            )
            block = do.buffer()[:BLOCK_BYTES]
            flush_s = median(_flush_seconds(file, block) for _ in range(FLUSHES))
        finally:
            file.close()
    return DiskRates(
        read_bytes_per_s=turn_bytes / read_s, write_bytes_per_s=turn_bytes / write_s,
        mixed_bytes_per_s=2 * turn_bytes / both_s,
        pull_bytes_per_s=len(pulls) * pull_bytes / pull_s,
        flush_s=flush_s, requests_count=threads_count, request_bytes=page_bytes,
        pulls_count=pulls_count, pull_request_bytes=pull_bytes,
        file_bytes=2 * side_bytes, reason=direct.reason,
        free_bytes=free_bytes,
    )  # fmt: skip


def _pull_offsets(file_bytes: int, pull_bytes: int, count: int) -> list[int]:
    """So many, spread over the file, in whole blocks."""
    from switch_emu.store.direct_io import BLOCK_BYTES

    gaps = max(1, count - 1)
    blocks = (file_bytes - pull_bytes) // BLOCK_BYTES
    return [blocks * index // gaps * BLOCK_BYTES for index in range(count)]


def _flush_seconds(file: Any, block: memoryview) -> float:
    file.write(0, block)
    return timed(file.flush)


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
