"""The least a program can do that moves the same pages: no checksums, no arithmetic, no answers.

Two files as large as a store's sides, written once; a fixed number of threads, each with one
aligned buffer, take the pages in order, read one from one file and write it to the other. One step
is one pass over all pages; the next goes back. `flush`: one fdatasync a step, the least that could
make it durable (the store makes three).
"""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path

from luwu.base.closing import Closing
from switch_emu.store import StoreConfig, aligned_buffer
from switch_emu.store.direct_io import BLOCK_BYTES, probe_direct_io
from switch_emu.store.geometry import Geometry

_FILL_BYTES = 8 * 1024 * 1024


class RawPages(Closing):
    """The bodies of a store's pages in two files of their own."""

    def __init__(
        self, directory: Path, config: StoreConfig, *, in_flight: int, flush: bool
    ) -> None:
        geometry = Geometry(config)
        bodies = [_whole(geometry.body_bytes[kind]) for kind in config.page_kinds]
        self._pages = list(zip(geometry.offsets, bodies, strict=True))
        self._flush = flush
        self._buffers = [aligned_buffer(max(bodies)) for _ in range(in_flight)]
        self._step = 0
        self._error: OSError | None = None
        self._files = [_filled(directory / f"raw-{n}", geometry.side_bytes) for n in range(2)]

    def run(self, steps: int) -> None:
        """Read and write every page, `steps` times."""
        for _ in range(steps):
            tasks: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
            for page in self._pages:
                tasks.put(page)
            crew = [
                threading.Thread(target=self._move, args=(tasks, buffer))
                for buffer in self._buffers
            ]
            for thread in crew:
                thread.start()
            for thread in crew:
                thread.join()
            if self._error is not None:
                raise self._error
            if self._flush:
                os.fdatasync(self._files[1 - self._step % 2])
            self._step += 1

    def _move(self, tasks: queue.SimpleQueue[tuple[int, int]], buffer: memoryview) -> None:
        source, target = self._files[self._step % 2], self._files[1 - self._step % 2]
        try:
            while True:
                offset, body = tasks.get_nowait()
                page = [buffer[:body]]
                if os.preadv(source, page, offset) != body:
                    raise OSError(f"a short read at {offset}")
                if os.pwritev(target, page, offset) != body:
                    raise OSError(f"a short write at {offset}")
        except queue.Empty:
            pass
        except OSError as exc:
            self._error = exc

    def close(self) -> None:
        """Close the files; their directory is the caller's."""
        while self._files:
            os.close(self._files.pop())


def _filled(path: Path, size: int) -> int:
    """A file written once from end to end, as a store's sides are after two steps."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        for start in range(0, size, _FILL_BYTES):
            file.write(bytes(min(_FILL_BYTES, size - start)))
        file.flush()
        os.fdatasync(file.fileno())
    direct = os.O_DIRECT if probe_direct_io(path).enabled else 0
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | direct)


def _whole(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
