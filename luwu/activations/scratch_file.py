"""A file without a name, for what a process does not keep in memory and nobody needs after it.

It is deleted from its directory as soon as it is open, so nothing can be left behind. Space is
allocated before it is written to, so a full disk is an error at a known place. What is given back
is used again: a place is the first free one that is long enough, and neighbours that are both free
become one. The file never shrinks; it is as long as what was in it at once needed.

Reads and writes go through the kernel's page cache: where memory is free, the kernel keeps what was
written, and takes it from there. That memory is the kernel's to give back, not the process's.

`take` and `free` may be called by any thread; `write` and `read` by one thread at a time.
"""

from __future__ import annotations

import bisect
import os
import tempfile
import threading
import weakref
from pathlib import Path

from luwu.base.closing import Closing
from luwu.base.errors import ConfigError, StateError
from luwu.base.quantities import format_bytes
from luwu.base.refusals import refusal

BLOCK_BYTES = 4096

_ELSEWHERE = "start again, or name a directory on another disk"


class ScratchFile(Closing):
    """See the module; `what` it is for, and what else to do if it is full, stand in its errors."""

    def __init__(self, directory: Path, *, what: str, remedy: str) -> None:
        self.directory = directory
        self._what, self._remedy = what, remedy
        try:
            fd, name = tempfile.mkstemp(prefix="luwu-scratch-", dir=directory)
            os.unlink(name)
        except OSError as exc:
            raise ConfigError(
                f"no file for {what} can be made in {directory}: {exc}; name a directory that can "
                "be written to"
            ) from exc
        self._fd = fd
        self._close = weakref.finalize(self, os.close, fd)
        self._lock = threading.Lock()
        self._extents = Extents()
        self.disk_bytes = 0
        """Bytes allocated."""

    def take(self, nbytes: int) -> int:
        """The offset of a place for so many bytes. Raises StoreFullError."""
        length = _whole(nbytes)
        with self._lock:
            start = self._extents.take(length)
            if start is None:
                start = self._grow(length)
        return start

    def free(self, offset: int, nbytes: int) -> None:
        """The place may be used again."""
        with self._lock:
            self._extents.give(offset, _whole(nbytes))

    def write(self, offset: int, data: memoryview) -> None:
        """Write to a place. Raises StateError."""
        done = 0
        try:
            os.lseek(self._fd, offset, os.SEEK_SET)
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError as exc:
            raise self._broken("written", offset + done, exc) from exc

    def read(self, offset: int, into: memoryview) -> None:
        """Read what was written to a place. Raises StateError."""
        done = 0
        try:
            os.lseek(self._fd, offset, os.SEEK_SET)
            while done < len(into):
                count = os.readv(self._fd, [into[done:]])
                if count == 0:
                    raise OSError(f"the file ends {len(into) - done} bytes too early")
                done += count
        except OSError as exc:
            raise self._broken("read", offset + done, exc) from exc

    def close(self) -> None:
        """Give the disk space back."""
        self._close()

    def __str__(self) -> str:
        return f"the file for {self._what} in {self.directory}"

    def _grow(self, nbytes: int) -> int:
        start = self.disk_bytes
        try:
            os.posix_fallocate(self._fd, start, nbytes)
        except OSError as exc:
            what = f"{self} cannot grow from {format_bytes(start)} by {format_bytes(nbytes)}"
            raise refusal(what, exc, then=f"start again, or {self._remedy}") from exc
        self.disk_bytes += nbytes
        return start

    def _broken(self, verb: str, offset: int, exc: OSError) -> StateError:
        return refusal(f"{self} cannot be {verb} at offset {offset}", exc, then=_ELSEWHERE)


class Extents:
    """The free parts of a range of addresses, in order; no two of them touch."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def take(self, length: int) -> int | None:
        """The first free part of this length; None if there is none."""
        for index, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            if stop - start >= length:
                if stop - start == length:
                    del self._starts[index], self._stops[index]
                else:
                    self._starts[index] = start + length
                return start
        return None

    def give(self, start: int, length: int) -> None:
        """This part is free."""
        stop = start + length
        index = bisect.bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == stop:
            stop = self._stops[index]
            del self._starts[index], self._stops[index]
        if index > 0 and self._stops[index - 1] == start:
            self._stops[index - 1] = stop
            return
        self._starts.insert(index, start)
        self._stops.insert(index, stop)


def _whole(nbytes: int) -> int:
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
