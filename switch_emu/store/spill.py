"""Where gradient sums go that find no room in RAM: one file of equal places, reused.

Nothing in it outlives the process that made it: an undecided step is replayed, not recovered. The
file is deleted from its directory as soon as it is open, so a crash leaves nothing behind, and its
blocks are allocated before they are needed, so a full disk is an error at a known place.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from luwu.base.errors import StoreFullError
from luwu.base.quantities import format_bytes


class SpillFile:
    """Places of `place_bytes` each; grows by as many as it was made with."""

    def __init__(self, directory: Path | None, *, place_bytes: int, places_count: int) -> None:
        self._place_bytes = place_bytes
        self._grow_count = max(1, places_count)
        self._free: list[int] = []
        self._places_count = 0
        descriptor, name = tempfile.mkstemp(prefix="spill-", dir=directory)
        self._fd = descriptor
        os.unlink(name)
        self.bytes_written = 0
        self.bytes_read = 0
        try:
            self._grow()
        except StoreFullError:
            self.close()
            raise

    @property
    def disk_bytes(self) -> int:
        """Bytes allocated."""
        return self._places_count * self._place_bytes

    def put(self, data: memoryview) -> int:
        """Keep the bytes; the number of their place. Raises StoreFullError."""
        assert data.nbytes <= self._place_bytes, (data.nbytes, self._place_bytes)
        if not self._free:
            self._grow()
        place = self._free.pop()
        written = 0
        while written < data.nbytes:
            written += os.pwrite(self._fd, data[written:], place * self._place_bytes + written)
        self.bytes_written += data.nbytes
        return place

    def get(self, place: int, nbytes: int) -> memoryview:
        """The bytes of a place, in a new buffer."""
        data = memoryview(bytearray(nbytes))
        done = 0
        while done < nbytes:
            count = os.preadv(self._fd, [data[done:]], place * self._place_bytes + done)
            assert count > 0, "the spill file is shorter than what was put into it"
            done += count
        self.bytes_read += nbytes
        return data

    def free(self, place: int) -> None:
        """The place may be used again."""
        self._free.append(place)

    def close(self) -> None:
        """Give the disk space back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _grow(self) -> None:
        start = self._places_count * self._place_bytes
        added = self._grow_count * self._place_bytes
        try:
            os.posix_fallocate(self._fd, start, added)
        except OSError as exc:
            raise StoreFullError(
                f"the spill file of gradient sums cannot grow from {format_bytes(start)} by "
                f"{format_bytes(added)}: {exc}. Free space, or raise --memory-budget"
            ) from exc
        self._free.extend(range(self._places_count, self._places_count + self._grow_count))
        self._places_count += self._grow_count
