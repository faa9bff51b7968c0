"""The last steps of a run as lanes, from the spans of its processes.

A step begins for a worker with its first forward, or its wait for the weights of one, and lasts
until the next step's. Processes on several hosts are aligned by their wall clocks.
"""

from __future__ import annotations

import statistics
from typing import Final

from luwu.report.lanes import COMPUTE, WAIT, Lanes, Span, make_lanes
from luwu.report.recent import ProcessEvents, RecentEvents

STEPS_MAX: Final = 20
"""Last steps of which the typical one is chosen."""

_IN_THE_LOOP: Final = ("pull_wait", "forward", "backward", "flatten")
"""Spans of a worker's training thread."""
_ENGINES: Final = {
    "worker": {
        "forward": COMPUTE, "backward": COMPUTE, "pull_wait": WAIT, "pull": "pull", "push": "push",
    },
    "switch": {"sum": "sum"},
    "node": {
        "update": "update", "fold": "update", "read": "read", "read_weights": "read",
        "write": "write", "prepare": "write", "decide": "write",
    },
}  # fmt: skip
"""The lane of each span, by kind of process."""


def typical_step(events: RecentEvents, usual_s: float | None = None) -> int | None:
    """Of the last steps the one that took nearest to `usual_s`, by default their median; None
    before a step has ended."""
    steps = ended_steps(events)
    if not steps:
        return None
    starts = [step_starts_ns(worker) for worker in events.of("worker") if worker.spans]
    lengths = {
        step: statistics.median(each[step + 1] - each[step] for each in starts) for step in steps
    }
    usual_ns = statistics.median(lengths.values()) if usual_s is None else usual_s * 1e9
    return min(steps, key=lambda step: abs(lengths[step] - usual_ns))


def ended_steps(events: RecentEvents) -> list[int]:
    """The last steps that have ended at all workers, and whose spans are held."""
    each = [_held_steps(worker) for worker in events.of("worker") if worker.spans]
    return sorted(set.intersection(*each))[-STEPS_MAX:] if each else []


def lanes_of_step(events: RecentEvents, step: int, *, slowest: bool = False) -> Lanes:
    """A step as that worker saw it whose compute took the median time of all, or the longest."""
    found = sorted(
        (_lanes_of(events, worker, step) for worker in events.of("worker") if worker.spans),
        key=lambda lanes: lanes.busy_ratio(COMPUTE) * lanes.length_s,
    )
    return found[-1] if slowest else found[(len(found) - 1) // 2]


def step_starts_ns(worker: ProcessEvents) -> dict[int, int]:
    """When a worker began its last steps, in nanoseconds of Unix."""
    found: dict[int, int] = {}
    for span in worker.spans:
        if span["name"] in _IN_THE_LOOP:
            step, start_ns = span["step"], worker.unix_ns(span["start_ns"])
            if start_ns < found.get(step, start_ns + 1):
                found[step] = start_ns
    return found


def _held_steps(worker: ProcessEvents) -> set[int]:
    """Steps of which both ends are held; the oldest may have lost its beginning."""
    starts_ns = step_starts_ns(worker)
    oldest = min(starts_ns, default=0)
    return {step for step in starts_ns if step + 1 in starts_ns and (step > oldest or step == 0)}


def _lanes_of(events: RecentEvents, worker: ProcessEvents, step: int) -> Lanes:
    starts_ns = step_starts_ns(worker)
    start_ns, length_ns = starts_ns[step], starts_ns[step + 1] - starts_ns[step]
    spans: dict[str, list[Span]] = {}
    pale: list[Span] = []
    stolen: list[Span] = []
    others: list[Span] = []
    for process in events.of(*_ENGINES):
        engines = _ENGINES[process.file.kind]
        is_other = process.file.kind == "worker" and process is not worker
        for record in process.spans:
            from_ns = process.unix_ns(record["start_ns"]) - start_ns
            to_ns = process.unix_ns(record["end_ns"]) - start_ns
            if to_ns <= 0 or from_ns >= length_ns:
                continue
            name, span = record["name"], (from_ns / 1e9, to_ns / 1e9)
            engine = engines.get(name)
            if is_other:
                others += [span] if engine == COMPUTE else []
                continue
            if engine is not None:
                spans.setdefault(engine, []).append(span)
            if name == "forward":
                pale.append(span)
            elif name == "flatten":
                stolen.append(span)
    return make_lanes(step, length_ns / 1e9, spans, pale=pale, stolen=stolen, others=others)
