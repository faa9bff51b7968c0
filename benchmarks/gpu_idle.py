"""Where a step goes on a GPU: idle time of its compute stream, by unit and cause. Pure.

Between the first and the last kernel of the steps looked at, idle time has the first of these
causes that holds:

    step end   the step's last backward is over, and no kernel of the next forward has begun
    weights    the training thread waits for weights that have not come (`pull_wait`)
    copy       weights are being copied to the device, and nothing else is left to compute
    host       none of these: the training thread, or Python's lock, did not hand out work in time

An idle time belongs to the unit whose kernel ends it: the one whose forward or backward handed that
kernel out. Nanoseconds of one clock.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from luwu.report.intervals import Intervals, union

CAUSES: Final = ("step end", "weights", "copy", "host")
_COMPUTE: Final = ("forward", "backward")
_NOT_COMPUTE: Final = ("pull_wait", "flatten")
OTHER_UNIT: Final = "(outside of units)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Kernels and copies of a device in some steps."""

    compute: Sequence[tuple[int, int, int]]
    """(start, end, when the host handed it out) of each kernel of the compute stream."""
    copies_in: Sequence[tuple[int, int]]
    """(start, end) of each copy to the device."""
    copies_out: Sequence[tuple[int, int]]
    """(start, end) of each copy from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Where the time of some steps went."""

    steps: int
    length_ns: int
    """From the first kernel to the last."""
    busy_ns: int
    by_cause_ns: Mapping[str, int]
    by_unit_ns: Mapping[str, Mapping[str, int]]
    """By unit, then by cause."""
    in_behind_compute: float | None
    """Share of the time of copies to the device in which kernels ran; None without copies."""
    out_behind_compute: float | None


def compute_on_host(spans: Iterable[Mapping[str, Any]]) -> list[tuple[int, int, int]]:
    """The compute of a worker on a CPU: forward and backward, without waits and copies."""
    spans = list(spans)
    found = _union(_pairs(spans, _COMPUTE)).without(_union(_pairs(spans, _NOT_COMPUTE)))
    return [(start, end, start) for start, end in _ends(found)]


def idle(activity: Activity, spans: Iterable[Mapping[str, Any]], steps: range) -> Idle | None:
    """Where these steps went. `spans`: of the worker, as its events have them; None without any
    kernel in them."""
    all_spans = [each for each in spans if each.get("step") in steps]
    by_step = {step: [each for each in all_spans if each["step"] == step] for step in steps}
    work = {
        step: _pairs(each, _COMPUTE) for step, each in by_step.items() if _pairs(each, _COMPUTE)
    }
    if not work:
        return None
    first_ns = min(start for start, _ in work[min(work)])
    last_ns = max(end for _, end in work[max(work)])
    kernels = sorted(each for each in activity.compute if first_ns <= each[2] <= last_ns)
    if not kernels:
        return None
    computed = _union([(start, end) for start, end, _ in kernels])
    whole = _union([(kernels[0][0], max(end for _, end, _ in kernels))])
    left = whole.without(computed)
    reasons = {
        "step end": _between_steps(work, kernels),
        "weights": _union(_pairs(all_spans, ("pull_wait",))),
        "copy": _union(activity.copies_in),
        "host": whole,
    }
    units = _Units(all_spans)
    by_unit: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(CAUSES, 0))
    starts = [start for start, _, _ in kernels]
    for cause in CAUSES:
        for start, end in _ends(left.within(reasons[cause])):
            _, _, launched_ns = kernels[min(bisect_left(starts, end), len(kernels) - 1)]
            by_unit[units.at(launched_ns)][cause] += end - start
        left = left.without(reasons[cause])
    return Idle(
        steps=len(work),
        length_ns=whole.total_ns,
        busy_ns=computed.total_ns,
        by_cause_ns={cause: sum(each[cause] for each in by_unit.values()) for cause in CAUSES},
        by_unit_ns=dict(by_unit),
        in_behind_compute=_share_behind(activity.copies_in, whole, computed),
        out_behind_compute=_share_behind(activity.copies_out, whole, computed),
    )


@dataclass(frozen=True, slots=True)
class Arrival:
    """When weights came, and when they were needed."""

    unit: str
    early_ns: int
    """How long before; negative: so much later."""


def arrivals(spans: Iterable[Mapping[str, Any]], steps: range) -> list[Arrival]:
    """How long before their use the weights of each pull arrived, in these steps."""
    of_unit: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for span in spans:
        if span.get("step") in steps:
            of_unit[span["unit"]].append(span)
    found = []
    for unit, theirs in of_unit.items():
        uses = sorted(each["start_ns"] for each in theirs if each["name"] in _COMPUTE)
        waits = [
            (each["start_ns"], each["end_ns"]) for each in theirs if each["name"] == "pull_wait"
        ]
        for pull in theirs:
            if pull["name"] != "pull":
                continue
            came_ns = pull["end_ns"]
            late = [start - came_ns for start, end in waits if start <= came_ns <= end]
            later = bisect_left(uses, came_ns)
            if late:
                found.append(Arrival(unit, late[0]))
            elif later < len(uses):
                found.append(Arrival(unit, uses[later] - came_ns))
    return found


class _Units:
    """The unit that a moment of the training thread belongs to: that of the innermost span."""

    def __init__(self, spans: Iterable[Mapping[str, Any]]) -> None:
        self._spans = sorted(
            (each["end_ns"] - each["start_ns"], each["start_ns"], each["end_ns"], each["unit"])
            for each in spans
            if each["name"] in _COMPUTE
        )

    def at(self, moment_ns: int) -> str:
        inside = (
            unit for _, start_ns, end_ns, unit in self._spans if start_ns <= moment_ns <= end_ns
        )
        return next(inside, OTHER_UNIT)


def _between_steps(
    work: Mapping[int, Sequence[tuple[int, int]]], kernels: Sequence[tuple[int, int, int]]
) -> Intervals:
    """From each step's last backward to the first kernel of the next step's forward."""
    steps = sorted(work)
    found = []
    for before, after in itertools.pairwise(steps):
        over_ns = max(end for _, end in work[before])
        begins_ns = min(start for start, _ in work[after])
        first = next((start for start, _, launched in kernels if launched >= begins_ns), over_ns)
        found.append((over_ns, max(over_ns, first)))
    return _union(found)


def _share_behind(
    copies: Sequence[tuple[int, int]], whole: Intervals, computed: Intervals
) -> float | None:
    inside = _union(copies).within(whole)
    return computed.within(inside).total_ns / inside.total_ns if inside.total_ns else None


def _pairs(spans: Iterable[Mapping[str, Any]], names: Sequence[str]) -> list[tuple[int, int]]:
    return [(each["start_ns"], each["end_ns"]) for each in spans if each["name"] in names]


def _union(pairs: Sequence[tuple[int, int]]) -> Intervals:
    times = np.array(pairs, np.int64).reshape(-1, 2)
    return union(times[:, 0], times[:, 1])


def _ends(found: Intervals) -> list[tuple[int, int]]:
    return list(zip(found.starts_I.tolist(), found.ends_I.tolist(), strict=True))
