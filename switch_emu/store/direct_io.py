"""Files read and written in whole blocks, past the page cache where the file system allows it.

Direct I/O needs file offsets, lengths and memory addresses on multiples of the device's block (512
or 4,096 bytes; see `probe_direct_io`). `BlockFile` takes any range: the whole blocks of
aligned buffers, such as those of `aligned_buffer`, go straight to the device; the rest, and other
buffers, through a bounce buffer of up to 1 MiB per thread, allocated as it is used. Without direct
I/O the same calls go through the page cache.

Short transfers are continued; signals are handled by Python (PEP 475). No error is ever retried.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from luwu.base.address import address_of
from luwu.base.closing import Closing
from luwu.base.errors import PageCorruptError
from luwu.base.foreign import open_file

BLOCK_BYTES = 4096
"""Everything in a store starts on a multiple of this, whatever the block of the device."""

BOUNCE_BYTES = 1024 * 1024

_HUGE_BYTES = 2 * 1024 * 1024
_COPIED_BYTES = 64 * 1024
"""Below this, a copy costs less than a second transfer for the last block."""

_bounce = threading.local()


def aligned_buffer(size: int) -> memoryview:
    """Zeroed memory on a page boundary, freed with its last view; allocated when first written."""
    mapping = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _HUGE_BYTES:
        mapping.madvise(mmap.MADV_HUGEPAGE)  # the kernel pins one page instead of 512
    return memoryview(mapping)[:size]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectIo:
    """The direct I/O that a file system supports."""

    align_bytes: int
    """Offsets, lengths and addresses are multiples of this; 1 means through the page cache."""

    reason: str
    """A phrase for the log."""

    @property
    def enabled(self) -> bool:
        """True if the page cache is bypassed."""
        return self.align_bytes > 1


BUFFERED_BY_CHOICE = DirectIo(align_bytes=1, reason="buffered: direct I/O was not asked for")


def probe_direct_io(path: Path) -> DirectIo:
    """Try direct reads on an existing file of at least two blocks."""
    try:
        fd = open_file(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as exc:
        return DirectIo(align_bytes=1, reason=f"buffered: opening for direct I/O failed ({exc})")
    try:
        error: OSError | None = None
        memory = aligned_buffer(2 * BLOCK_BYTES)
        for align in (512, BLOCK_BYTES):
            try:
                if os.preadv(fd, [memory[align : 2 * align]], align) == align:
                    return DirectIo(
                        align_bytes=align, reason=f"direct I/O in blocks of {align} bytes"
                    )
            except OSError as exc:
                error = exc
        return DirectIo(align_bytes=1, reason=f"buffered: a direct read failed ({error})")
    finally:
        os.close(fd)


class IoCounter:
    """Bytes and flushes of some files; updated by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes_read = 0
        self.bytes_written = 0
        self.flushes = 0

    def add(self, *, bytes_read: int = 0, bytes_written: int = 0, flushes: int = 0) -> None:
        """Count one transfer."""
        with self._lock:
            self.bytes_read += bytes_read
            self.bytes_written += bytes_written
            self.flushes += flushes


class BlockFile(Closing):
    """An open file of fixed size. Raises OSError with file and position."""

    def __init__(
        self, path: Path, direct: DirectIo, counter: IoCounter, *, synced: bool,
        read_only: bool = False,
    ) -> None:  # fmt: skip
        self.name = path.name
        self._align = direct.align_bytes
        self._counter = counter
        self._synced = synced
        access = os.O_RDONLY if read_only else os.O_RDWR
        self._fd = open_file(path, access | (os.O_DIRECT if direct.enabled else 0))
        if not direct.enabled:
            # What an earlier process could not flush must not be served from the cache.
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._fd).st_size

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into` from `offset`. Raises PageCorruptError if the file ends before that."""
        if not len(into):
            return
        direct = self._aligned_bytes(offset, into)
        if direct:
            self._read_all(offset, into[:direct])
            if direct == len(into):
                return
            offset, into = offset + direct, into[direct:]
        bounce = _bounce_buffer()
        done = 0
        while done < len(into):
            start = offset + done
            first = start % self._align  # bytes of the block before the range
            count = min(len(into) - done, BOUNCE_BYTES - first)
            whole = -(-(first + count) // self._align) * self._align
            self._read_all(start - first, bounce[:whole])
            into[done : done + count] = bounce[first : first + count]
            done += count

    def write(self, offset: int, data: memoryview) -> None:
        """Write `data` at a multiple of BLOCK_BYTES; the last block is filled up with zeros."""
        assert offset % BLOCK_BYTES == 0, "records start on blocks"
        if not len(data):
            return
        direct = self._aligned_bytes(offset, data)
        if direct < len(data):
            direct -= direct % BLOCK_BYTES
        if direct:
            self._write_all(offset, data[:direct])
            if direct == len(data):
                return
            offset, data = offset + direct, data[direct:]
        bounce = _bounce_buffer()
        for start in range(0, len(data), BOUNCE_BYTES):
            part = data[start : start + BOUNCE_BYTES]
            whole = -(-len(part) // BLOCK_BYTES) * BLOCK_BYTES
            bounce[: len(part)] = part
            bounce[len(part) : whole] = bytes(whole - len(part))
            self._write_all(offset + start, bounce[:whole])

    def read_pieces(self, offset: int, into: memoryview, size: int, stride: int) -> None:
        """Fill pieces of `size` bytes, `stride` apart in `into`, with what follows `offset`.

        One request if it can be direct; else, and from a piece that came short on, one a piece.
        """
        pieces = [into[start : start + size] for start in range(0, len(into), stride)]
        whole = 0
        if self._is_direct(offset, into, size, stride):
            whole = self._call(os.preadv, "reading", offset, pieces) // size
            self._counter.add(bytes_read=whole * size)
        for index in range(whole, len(pieces)):
            self.read(offset + index * size, pieces[index])

    def write_pieces(self, offset: int, data: memoryview, size: int, stride: int) -> None:
        """Write pieces of `size` bytes, `stride` apart in `data`, one behind the other.

        `offset` and `size` are multiples of BLOCK_BYTES. Requests as `read_pieces` makes them.
        """
        assert size % BLOCK_BYTES == 0, "records without a gap are whole blocks"
        pieces = [data[start : start + size] for start in range(0, len(data), stride)]
        whole = 0
        if self._is_direct(offset, data, size, stride):
            whole = self._call(os.pwritev, "writing", offset, pieces) // size
            self._counter.add(bytes_written=whole * size)
        for index in range(whole, len(pieces)):
            self.write(offset + index * size, pieces[index])

    def flush(self) -> None:
        """Make every finished write survive power loss, at durability `step`."""
        if self._synced:
            try:
                os.fdatasync(self._fd)
            except OSError as exc:
                raise OSError(exc.errno, f"{exc.strerror}, flushing it", self.name) from exc
            self._counter.add(flushes=1)

    def close(self) -> None:
        """Close the file; once."""
        os.close(self._fd)

    def _is_direct(self, offset: int, memory: memoryview, size: int, stride: int) -> bool:
        """True if these pieces can be transferred where they lie."""
        align = self._align
        return align == 1 or not (
            offset % align or size % align or stride % align or address_of(memory) % align
        )

    def _aligned_bytes(self, offset: int, view: memoryview) -> int:
        """Bytes of the view, from its start, that go straight to the device."""
        if self._align > 1 and (offset % self._align or address_of(view) % self._align):
            return 0
        rest = len(view) % self._align
        return 0 if rest and len(view) <= _COPIED_BYTES else len(view) - rest

    def _read_all(self, offset: int, into: memoryview) -> None:
        done = 0
        while done < len(into):
            count = self._call(os.preadv, "reading", offset + done, [into[done:]])
            if count == 0:
                raise PageCorruptError(
                    f"{self.name} ends at byte {self.size}, expected at least "
                    f"{offset + len(into)}. The file was cut short; restore the store from a "
                    "checkpoint."
                )
            done = self._continue_at(done, count, len(into))
        self._counter.add(bytes_read=len(into))

    def _write_all(self, offset: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            count = self._call(os.pwritev, "writing", offset + done, [data[done:]])
            done = self._continue_at(done, count, len(data))
        self._counter.add(bytes_written=len(data))

    def _call(
        self, call: Callable[[int, list[memoryview], int], int], doing: str, offset: int,
        memory: list[memoryview],
    ) -> int:  # fmt: skip
        try:
            return call(self._fd, memory, offset)
        except OSError as exc:
            text = f"{exc.strerror}, {doing} at byte {offset}"
            raise OSError(exc.errno, text, self.name) from exc

    def _continue_at(self, done: int, count: int, size: int) -> int:
        """Start of the next transfer: direct I/O continues at the last whole block."""
        if done + count == size:
            return size
        whole = (done + count) // self._align * self._align
        if whole <= done:
            text = f"a transfer stopped after {done + count} of {size} bytes"
            raise OSError(errno.EIO, text, self.name)
        return whole


def _bounce_buffer() -> memoryview:
    if not hasattr(_bounce, "view"):
        _bounce.view = aligned_buffer(BOUNCE_BYTES)
    view: memoryview = _bounce.view
    return view
