"""Pulls at the node: what was asked for, what waits for an update, what is being read. Pure.

asked -> waiting   the weights are not there yet
asked -> queued    they can be read; reads start in this order, a few at a time
waiting -> taken   an update hands them out on its way
"""

from __future__ import annotations

from collections import deque

from switch_emu.node.core.actions import ReadWeights


class Publisher:
    """The pulls of one node's child."""

    def __init__(self, reads_max: int) -> None:
        self._reads_max = reads_max
        self._waiting: dict[tuple[int, int], set[int]] = {}
        """(step, chunk) -> uses that were asked for."""
        self._queue: deque[ReadWeights] = deque()
        self._under_way: set[ReadWeights] = set()

    def ask(self, step: int, chunk: int, part: int) -> None:
        """A chunk is wanted for a use of a step."""
        self._waiting.setdefault((step, chunk), set()).add(part)

    def awaits(self, step: int, chunk: int) -> bool:
        """Whether this chunk is waited for."""
        return (step, chunk) in self._waiting

    def take(self, step: int, chunk: int) -> tuple[int, ...]:
        """The uses that wait for a chunk; they are served by the caller."""
        return tuple(sorted(self._waiting.pop((step, chunk), ())))

    def queue(self, step: int, chunk: int, version: int | None, attempt: int) -> None:
        """The chunk can be read: plan it for all uses that wait."""
        parts = self.take(step, chunk)
        if parts:
            self._queue.append(ReadWeights(chunk, step, version, attempt, parts))

    def start(self) -> list[ReadWeights]:
        """Reads to start now."""
        started: list[ReadWeights] = []
        while self._queue and len(self._under_way) < self._reads_max:
            started.append(self._queue.popleft())
            self._under_way.add(started[-1])
        return started

    def ended(self, read: ReadWeights) -> None:
        """A read came to its end."""
        self._under_way.discard(read)

    def reads_before(self, step: int) -> bool:
        """Whether weights for an older step are still being read."""
        return any(read.step < step for read in self._under_way)

    def advance(self, step: int) -> list[int]:
        """`step` is the next: forget older pulls; the chunks that are waited for now."""
        self._waiting = {key: parts for key, parts in self._waiting.items() if key[0] >= step}
        self._queue = deque(read for read in self._queue if read.step >= step)
        return [chunk for version, chunk in self._waiting if version == step]

    def clear(self, *, waiting: bool) -> None:
        """Forget what is queued, and what waits if the attempt was aborted."""
        self._queue.clear()
        if waiting:
            self._waiting.clear()
