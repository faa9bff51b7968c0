"""What the disk of a directory can do at best, on a temporary file that is always removed."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from luwu.launch.timing import MIB, Samples, repeated, run_all, timed

FLUSHES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFloors:
    """Rates of the directory that holds the state."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    """Of blocks that were written before, as in every step but the first two."""
    mixed_bytes_per_s: float
    """Read plus written, where each thread reads a page and writes one, as an update does."""
    pull_bytes_per_s: float
    """Reads of a third of a page, as pulls of weights make them."""
    flush_s: float
    requests_count: int
    """In flight at once."""
    request_bytes: int
    reason: str
    """Whether the page cache was passed by."""
    total_bytes: int
    """Size of the file system."""
    free_bytes: int


def existing_directory(path: Path) -> Path:
    """The directory, or the nearest one above it that there is."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.is_dir())


def disk_floors(
    directory: Path, *, page_bytes: int, threads_count: int, pulls_count: int, samples: Samples
) -> DiskFloors | None:
    """Rates of a directory; None where no file of that size can be made there.

    `threads_count` pages are under way at once, and `pulls_count` pulls.
    """
    place = existing_directory(directory)
    usage = shutil.disk_usage(place)
    try:
        with tempfile.TemporaryDirectory(prefix=".luwu-floors-", dir=place) as name:
            return _measure(Path(name), usage, page_bytes, (threads_count, pulls_count), samples)
    except OSError:
        return None


def _measure(
    folder: Path, usage: Any, page_bytes: int, counts: tuple[int, int], samples: Samples
) -> DiskFloors:
    from switch_emu.store.direct_io import (
        BLOCK_BYTES,
        BlockFile,
        IoCounter,
        aligned_buffer,
        probe_direct_io,
    )

    threads_count, pulls_count = counts
    most = samples.disk_bytes // (2 * threads_count) // BLOCK_BYTES * BLOCK_BYTES
    page_bytes = max(BLOCK_BYTES, min(-(-page_bytes // BLOCK_BYTES) * BLOCK_BYTES, most))
    pages = max(threads_count, samples.disk_bytes // 2 // page_bytes)
    side_bytes = pages * page_bytes
    pull_bytes = max(BLOCK_BYTES, page_bytes // 3 // BLOCK_BYTES * BLOCK_BYTES)
    path = folder / "pages"
    with path.open("wb") as made:
        os.posix_fallocate(made.fileno(), 0, 2 * side_bytes)
    direct = probe_direct_io(path)
    local = threading.local()
    noise = os.urandom(min(page_bytes, MIB))
    file = BlockFile(path, direct, IoCounter(), synced=True)

    def buffer() -> memoryview:
        if not hasattr(local, "buffer"):
            local.buffer = aligned_buffer(page_bytes)
            local.buffer[:] = (noise * (page_bytes // len(noise) + 1))[:page_bytes]
        found: memoryview = local.buffer
        return found

    def read(page: int) -> None:
        file.read(page * page_bytes, buffer())

    def write(page: int) -> None:
        file.write(page * page_bytes, buffer())

    def pull(page: int) -> None:
        file.read(page * page_bytes, buffer()[:pull_bytes])

    def both(page: int) -> None:
        read(page)
        write(pages + page)

    with ThreadPoolExecutor(threads_count) as pool, ThreadPoolExecutor(pulls_count) as pullers:
        try:
            run_all(pool, write, range(2 * pages))
            file.flush()
            write_s = repeated(lambda: run_all(pool, write, range(pages, 2 * pages)),
                               samples.seconds)  # fmt: skip
            read_s = repeated(lambda: run_all(pool, read, range(pages)), samples.seconds)
            pull_s = repeated(lambda: run_all(pullers, pull, range(pages)), samples.seconds)
            both_s = repeated(lambda: run_all(pool, both, range(pages)), samples.seconds)
            flush_s = median(_flush_seconds(file, buffer()[:BLOCK_BYTES]) for _ in range(FLUSHES))
        finally:
            file.close()
    return DiskFloors(
        read_bytes_per_s=side_bytes / read_s,
        write_bytes_per_s=side_bytes / write_s,
        mixed_bytes_per_s=2 * side_bytes / both_s,
        pull_bytes_per_s=pages * pull_bytes / pull_s,
        flush_s=flush_s,
        requests_count=threads_count,
        request_bytes=page_bytes,
        reason=direct.reason,
        total_bytes=usage.total,
        free_bytes=usage.free,
    )


def _flush_seconds(file: Any, block: memoryview) -> float:
    file.write(0, block)
    return timed(file.flush)
