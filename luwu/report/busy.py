"""When each engine of a process was busy, and how many pages were updated early.

Busy is the time in which at least one span of the engine was under way. *Compute* of a worker is
forward and backward of its units without what its training thread does meanwhile to get weights
(pull_wait) and to copy gradients out (flatten).

A row of memory is two numbers a span, nothing more.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from luwu.report.aligned import Survey, timed
from luwu.report.event_files import EventFile, spans
from luwu.report.intervals import Intervals, union
from luwu.report.timeline import track_of

_NOT_COMPUTE: Final = ("pull_wait", "flatten")

Tracks = Mapping[str, "array[int]"]


def spans_of(file: EventFile, found: Survey) -> Tracks:
    """By engine: start and end of each span, in turns."""
    tracks: dict[str, array[int]] = {}
    for item in timed(file, found):
        if item.end_ns is not None:
            times = tracks.setdefault(track_of(item.name), array("q"))
            times.extend((item.start_ns, item.end_ns))
    return tracks


def covered(processes: Iterable[Tracks], *engines: str) -> Intervals:
    """The time in which at least one of these engines of the processes was busy."""
    times = array("q")
    for tracks in processes:
        for name in engines:
            times.extend(tracks.get(name, ()))
    pairs = np.array(times, np.int64).reshape(-1, 2)
    return union(pairs[:, 0], pairs[:, 1])


def compute_of(tracks: Tracks) -> Intervals:
    """The time in which a worker computed."""
    return covered([tracks], "compute").without(covered([tracks], *_NOT_COMPUTE))


def updated_before_last_push_ratio(events: Path) -> float | None:
    """Share of pages updated before their step's last push began; None without spans.

    The share is over all steps. All processes of one host share the monotonic clock.
    """
    last_push_ns: dict[int, int] = {}
    for path in sorted(events.glob("worker-*.jsonl")):
        for span in spans(path, "push"):
            step, start_ns = span["step"], span["start_ns"]
            last_push_ns[step] = max(start_ns, last_push_ns.get(step, start_ns))
    updated = early = 0
    for path in sorted(events.glob("node*.jsonl")):
        for span in spans(path, "update"):
            if span.get("step") in last_push_ns:
                updated += 1
                early += span["end_ns"] < last_push_ns[span["step"]]
    return early / updated if updated else None
