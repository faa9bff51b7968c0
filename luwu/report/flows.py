"""The way of a gradient through a run, as arrows between slices: push, sum, update, pull.

Each worker has an arrow of its own from its push of an extent to the sum of the switch, from there
to the update of the node, and on to its pull of the weights that the update made:

    worker 0  push -.            .-> pull
                     > sum > update
    worker 1  push -'            '-> pull

All arrows of one extent in one step have one id; those of one worker also have one name, the
worker's, because a flow is a chain: Perfetto tells flows apart by id, category and name. Arrows
leave and reach slices at their starts. Perfetto draws an arrow from the slice that starts first to
the other, whatever the order of events; so a pull has a slice that starts when its weights were
made (`luwu.report.timeline`).

Which slices of a step and an extent, where there are several:

    push      the last of the worker: earlier ones are of other backwards, or of a lost attempt
    sum       the last of each switch above the worker, the nearest first
    fold      the last, where the node adds up several backwards before it updates
    update    the last: weights are sent when all pages of the extent are updated
    pull      the worker's first whose slice starts after that

A gradient that no switch summed goes from the push to the update, and an arrow that would go back
in time, as between hosts whose clocks do not agree, is left out with all that follow.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np

KINDS: Final = ("push", "sum", "fold", "update", "pull")
"""Names of the spans that flows go through, in their order."""
CATEGORY: Final = "gradient"

_PUSH, _SUM, _FOLD, _UPDATE, _PULL = range(len(KINDS))
_FIELDS: Final = 6


class _Point(NamedTuple):
    """A slice that a flow may go through."""

    step: int
    """The step of the gradient: one less than that of the pull."""
    extent: int
    kind: int
    at_ns: int
    pid: int
    tid: int


class Flows:
    """Collects the slices of all processes, 48 bytes each, and connects them."""

    def __init__(self, names: Mapping[int, str], below: Mapping[int, frozenset[int]]) -> None:
        """`names`: of workers by pid; `below`: by a switch's pid, pids of the workers whose
        gradients it adds up, where these are not all."""
        self._names, self._below = names, below
        self._points = array("q")

    def add(
        self, name: str, step: object, extents: Iterable[int], pid: int, tid: int, at_ns: int
    ) -> None:
        """A slice of one of `KINDS` that starts at `at_ns`."""
        if type(step) is not int:
            return
        kind = KINDS.index(name)
        for extent in extents:
            self._points.extend((step - (kind == _PULL), extent, kind, at_ns, pid, tid))

    def events(self) -> Iterator[dict[str, Any]]:
        """Flow events, those of one id together, in the order of time."""
        points_PF = np.array(self._points, np.int64).reshape(-1, _FIELDS)
        extent_count = int(points_PF[:, 1].max(initial=0)) + 1
        points_PF = points_PF[np.lexsort(points_PF.T[3::-1])]
        points = (_Point(*point.tolist()) for point in points_PF)
        for (step, extent), group in groupby(points, key=lambda point: point[:2]):
            number, found = 1 + step * extent_count + extent, list(group)
            events = [
                event
                for pid, name in self._names.items()
                for event in _chain(self._way(pid, found), number, name)
            ]
            yield from sorted(events, key=lambda event: int(event["ts"]))

    def _way(self, worker: int, points: list[_Point]) -> list[_Point]:
        """The slices that a worker's gradient of an extent went through, in the order of time."""
        pushes = [each for each in points if each.kind == _PUSH and each.pid == worker]
        if not pushes:
            return []
        way = pushes[-1:]
        last_sums = {
            each.pid: each
            for each in points
            if each.kind == _SUM and worker in self._below.get(each.pid, (worker,))
        }
        next_ones = sorted(last_sums.values(), key=lambda each: each.at_ns)
        for kind in (_FOLD, _UPDATE):
            next_ones += [each for each in points if each.kind == kind][-1:]
        for each in next_ones:
            if each.at_ns < way[-1].at_ns:
                return way
            way.append(each)
        pulls = (each for each in points if each.kind == _PULL and each.pid == worker)
        if way[-1].kind == _UPDATE:
            way += [each for each in pulls if each.at_ns >= way[-1].at_ns][:1]
        return way


def _chain(way: list[_Point], number: int, name: str) -> Iterator[dict[str, Any]]:
    """The events of one flow; none unless it has two ends."""
    for index, point in enumerate(way if len(way) > 1 else ()):
        phase = "s" if index == 0 else "f" if index == len(way) - 1 else "t"
        yield {
            "ph": phase, "bp": "e", "id": number, "cat": CATEGORY, "name": name,
            "pid": point.pid, "tid": point.tid, "ts": point.at_ns,
        }  # fmt: skip
