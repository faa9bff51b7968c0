"""The free stretches of an arena: first fit, neighbours joined. Pure.

Invariants; the tests cite them by number:

    AF1  Free stretches are sorted, not empty, and no two of them touch.
    AF2  Free and taken stretches together are the whole, and none overlaps another.
"""

from __future__ import annotations

from bisect import bisect_left


class FreeList:
    """The free bytes of [0, nbytes)."""

    __slots__ = ("_ends", "_starts", "free_bytes")

    def __init__(self, nbytes: int) -> None:
        self._starts = [0] if nbytes else []
        self._ends = [nbytes] if nbytes else []
        self.free_bytes = nbytes

    def take(self, nbytes: int) -> int | None:
        """The start of the first free stretch that is large enough; None if there is none."""
        for index, start in enumerate(self._starts):
            if self._ends[index] - start >= nbytes:
                break
        else:
            return None
        if self._ends[index] - start == nbytes:
            del self._starts[index], self._ends[index]
        else:
            self._starts[index] += nbytes
        self.free_bytes -= nbytes
        return start

    def give(self, start: int, nbytes: int) -> None:
        """Give back what `take` returned."""
        end = start + nbytes
        self.free_bytes += nbytes
        index = bisect_left(self._starts, start)
        joins_before = index > 0 and self._ends[index - 1] == start
        joins_after = index < len(self._starts) and self._starts[index] == end
        if joins_before and joins_after:
            self._ends[index - 1] = self._ends[index]
            del self._starts[index], self._ends[index]
        elif joins_before:
            self._ends[index - 1] = end
        elif joins_after:
            self._starts[index] = start
        else:
            self._starts.insert(index, start)
            self._ends.insert(index, end)

    def largest_bytes(self) -> int:
        """The largest free stretch."""
        pairs = zip(self._starts, self._ends, strict=True)
        return max((end - start for start, end in pairs), default=0)

    def stretches(self) -> list[tuple[int, int]]:
        """(start, end) of each free stretch, in order."""
        return list(zip(self._starts, self._ends, strict=True))
