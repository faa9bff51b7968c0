"""Rows of the timeline: slices of a row must not overlap in part.

Where several spans of an engine are under way at once, they stand on several rows: each goes to the
first row that is free. Spans are taken by their start; a file has them by their end, so up to
`HELD_MAX` of a process are held to sort them. One that comes later still goes to a further row,
never over another.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from luwu.report.aligned import Timed

HELD_MAX: Final = 65_536
"""Spans of one process in memory."""

COMPUTE: Final = ("forward", "backward")
STEP: Final = "step"
_IN_THE_LOOP: Final = (*COMPUTE, "flatten", "pull_wait")
"""Spans of the training thread: their steps are the steps of the loop."""


def in_order(items: Iterable[Timed], held_max: int = HELD_MAX) -> Iterator[Timed]:
    """By start, the longest first; sorts within a window of `held_max`."""
    held: list[tuple[int, int, int, Timed]] = []
    for number, item in enumerate(items):
        end_ns = item.start_ns if item.end_ns is None else item.end_ns
        heapq.heappush(held, (item.start_ns, -end_ns, number, item))
        if len(held) > held_max:
            yield heapq.heappop(held)[-1]
    while held:
        yield heapq.heappop(held)[-1]


class Lanes:
    """Rows of one engine. A span goes to the first row where it overlaps nothing in part."""

    def __init__(self, *, may_nest: bool = False) -> None:
        self._may_nest = may_nest
        self._open: list[list[int]] = []
        """By row: ends of the slices that the next one may lie within, the innermost last."""
        self._last_ns: list[int] = []
        """By row: the next slice may not start before."""

    @property
    def count(self) -> int:
        """Rows so far."""
        return len(self._open)

    def place(self, start_ns: int, end_ns: int) -> int:
        """The row of a span."""
        for lane, ends in enumerate(self._open):
            if start_ns < self._last_ns[lane]:
                continue
            while ends and ends[-1] <= start_ns:
                ends.pop()
                self._last_ns[lane] = start_ns
            if not ends or end_ns <= ends[-1]:
                break
        else:
            lane, ends = self.count, []
            self._open.append(ends)
            self._last_ns.append(start_ns)
        if self._may_nest:
            ends.append(end_ns)
            self._last_ns[lane] = start_ns
        else:
            self._last_ns[lane] = end_ns
        return lane


class LoopSteps:
    """Makes one span of each step that a worker's loop runs; expects spans in order."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._start_ns = self._end_ns = 0

    def see(self, span: Timed) -> Timed | None:
        """The step that ended where this span began another."""
        step, ended = span.fields.get("step"), None
        assert span.end_ns is not None
        if not isinstance(step, int) or (span.name not in _IN_THE_LOOP and span.name != "push"):
            return None
        if step != self._step and span.name in _IN_THE_LOOP:
            ended = self.end()
            self._step, self._start_ns, self._end_ns = step, span.start_ns, span.end_ns
        elif step == self._step:
            self._end_ns = max(self._end_ns, span.end_ns)
        return ended

    def end(self) -> Timed | None:
        """The step that was under way."""
        if self._step is None:
            return None
        return Timed(STEP, self._start_ns, self._end_ns, {"step": self._step})
