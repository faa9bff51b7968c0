"""The spill file, for gradient sums that do not fit in RAM: equal places, reused.

It does not outlive its process: an undecided step is replayed, not recovered. The file is unlinked
as soon as it is open, so a crash leaves nothing behind, and its blocks are allocated before they
are needed, so a full disk is an error of `put`.

Like pages it bypasses the page cache, where the file system allows it. `put` copies into one of a
few aligned buffers, and a thread writes them; `put` waits only while all buffers are being written.
Places are reused in the order in which they became free, so successive sums lie side by side.
Thread-safe; writes are made in the order of `put`, so a place may be reused at once.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from luwu.base.closing import Closing
from luwu.base.errors import refusal, refusing
from luwu.base.quantities import format_bytes
from switch_emu.store.direct_io import BLOCK_BYTES, aligned_buffer, probe_direct_io

_LOST = "The undecided step is lost, the decided version is unchanged. "


class SpillFile(Closing):
    """Places of `place_bytes` each; the file grows by `places_count` at a time."""

    def __init__(
        self, directory: Path | None, *, place_bytes: int, places_count: int, buffers_count: int = 2
    ) -> None:
        """`buffers_count`: buffers of one place; with two, one is filled while one is written."""
        self._place_bytes = _whole(place_bytes)
        self._grow_count = max(1, places_count)
        self._free: deque[int] = deque()
        self._places_count = 0
        self._lock = threading.Lock()
        self._unwritten: dict[int, memoryview] = {}
        """Place -> buffer that is not in the file yet."""
        self._spare: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for _ in range(max(1, buffers_count)):
            self._spare.put(aligned_buffer(self._place_bytes))
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="luwu-spill")
        self._error: OSError | None = None
        self.bytes_written = 0
        self.bytes_read = 0
        with refusing(f"no spill file for gradient sums can be made in {directory}"):
            self._fd, name = tempfile.mkstemp(prefix="spill-", dir=directory)
            os.unlink(name)
        try:
            self._grow()
            with refusing("the spill file of gradient sums cannot be opened again"):
                self._bypass_cache()
        except BaseException:
            self.close()
            raise

    @property
    def disk_bytes(self) -> int:
        """Bytes allocated."""
        return self._places_count * self._place_bytes

    def put(self, data: memoryview) -> int:
        """Store the bytes; return the number of their place. Raises StoreFullError, StateError."""
        assert data.nbytes <= self._place_bytes, (data.nbytes, self._place_bytes)
        self._check()
        with self._lock:
            if not self._free:
                self._grow()
            place = self._free.popleft()
        buffer = self._spare.get()
        buffer[: data.nbytes] = data.cast("B")
        with self._lock:
            self._unwritten[place] = buffer
            self.bytes_written += data.nbytes
        self._writer.submit(self._write_behind, place, buffer, _whole(data.nbytes))
        return place

    def get(self, place: int, start: int, nbytes: int) -> memoryview:
        """So many bytes of a place from `start` on, in a new buffer. Raises StateError."""
        self._check()
        before = start % BLOCK_BYTES  # what is read begins with a whole block
        data = aligned_buffer(_whole(before + nbytes))
        with self._lock:
            self.bytes_read += nbytes
            unwritten = self._unwritten.get(place)
            if unwritten is not None:
                data[:nbytes] = unwritten[start : start + nbytes]
                return data[:nbytes]
        offset, done = place * self._place_bytes + start - before, 0
        while done < before + nbytes:
            with refusing("a gradient sum cannot be read back from the spill file", _LOST):
                count = os.preadv(self._fd, [data[done:]], offset + done)
            assert count > 0, "the spill file is shorter than what was put into it"
            done += count
        return data[before : before + nbytes]

    def free(self, place: int) -> None:
        """Release a place."""
        with self._lock:
            self._free.append(place)

    def close(self) -> None:
        """Release the disk space."""
        self._writer.shutdown()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write_behind(self, place: int, buffer: memoryview, nbytes: int) -> None:
        try:
            if self._error is None:
                self._write(place * self._place_bytes, buffer[:nbytes])
        except OSError as exc:
            self._error = exc
        with self._lock:
            if self._unwritten.get(place) is buffer:  # else the place was reused meanwhile
                del self._unwritten[place]
        self._spare.put(buffer)

    def _write(self, offset: int, data: memoryview) -> None:
        written = 0
        while written < len(data):
            written += os.pwritev(self._fd, [data[written:]], offset + written)

    def _check(self) -> None:
        if self._error is not None:
            what = "a gradient sum cannot be written to the spill file"
            raise refusal(what, self._error, _LOST) from self._error

    def _bypass_cache(self) -> None:
        path = Path(f"/proc/self/fd/{self._fd}")
        if self.disk_bytes >= 2 * BLOCK_BYTES and probe_direct_io(path).enabled:
            direct = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
            os.close(self._fd)
            self._fd = direct

    def _grow(self) -> None:
        start = self._places_count * self._place_bytes
        added = self._grow_count * self._place_bytes
        try:
            os.posix_fallocate(self._fd, start, added)
        except OSError as exc:
            what = (
                f"the spill file of gradient sums cannot grow from {format_bytes(start)} by "
                f"{format_bytes(added)}"
            )
            then = "start the node again, or raise --memory-budget"
            raise refusal(what, exc, _LOST, then=then) from exc
        self._free.extend(range(self._places_count, self._places_count + self._grow_count))
        self._places_count += self._grow_count


def _whole(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
