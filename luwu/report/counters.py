"""The rate of bytes over time, from spans that say how many bytes they moved.

The bytes of a span are spread evenly over its time; those of spans under way at once add up.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class Rate:
    """Bytes per second of the spans of one engine, which come in the order of their start."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, int]] = []
        """Heap of (time, change): changes that lie ahead."""
        self._now = 0

    def add(self, start_ns: int, end_ns: int, nbytes: int) -> None:
        """A span; one without a length has no rate."""
        if end_ns > start_ns:
            rate = nbytes * 1_000_000_000 // (end_ns - start_ns)
            heapq.heappush(self._changes, (start_ns, rate))
            heapq.heappush(self._changes, (end_ns, -rate))

    def before(self, end_ns: int | None) -> Iterator[tuple[int, int]]:
        """(time, bytes per second from then on) of the changes before a time; None: of all."""
        while self._changes and (end_ns is None or self._changes[0][0] < end_ns):
            at_ns = self._changes[0][0]
            while self._changes and self._changes[0][0] == at_ns:
                self._now += heapq.heappop(self._changes)[1]
            yield at_ns, self._now
