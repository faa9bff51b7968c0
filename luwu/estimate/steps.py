"""Times and bottlenecks of the steps of `luwu run`, whose model is known only when it runs.

A step lasts from one decision of the node to the next. Where the disk binds, the document has the
least time that it needs too: the bytes that moved, at the rates measured after the run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from luwu.base.events import CLOCK
from luwu.base.json_file import read_json
from luwu.base.quantities import format_seconds
from luwu.estimate.disk import DiskRates
from luwu.estimate.outcome import bound_by, busy_seconds
from luwu.launch.processes.run_directory import RunDirectory
from luwu.report.event_files import records

FILE: Final = "steps.json"
"""Where a run keeps it."""
STEPS_MIN: Final = 2
"""Fewer have no time between them."""


def steps_document(
    run: RunDirectory, measure_disk: Callable[[], DiskRates | None]
) -> dict[str, Any] | None:
    """Results of the steps; None for fewer than two, or without a node of this run.

    `measure_disk` is called where the disk binds: elsewhere its rates say nothing of the steps, and
    to measure them takes a second.
    """
    node = read_json(run.result("node.json"))
    decided = _decided(run)
    if node is None or len(decided.all_ns) < STEPS_MIN:
        return None
    steps = [(later - earlier) / 1e9 for earlier, later in pairwise(decided.all_ns)]
    median = statistics.median(steps)
    moved = node["disk_bytes"]
    busy = busy_seconds(run.path / "events", len(decided.all_ns)) or {}
    if not any(moved.values()):
        busy.pop("disk", None)  # reads and writes of pages in RAM are no work of a disk
    bound, disk_s = bound_by(busy, median) if busy else None, None
    disk = measure_disk() if bound == "disk" and decided.since_start_count else None
    if disk is not None:
        each = {name: count // decided.since_start_count for name, count in moved.items()}
        disk_s = disk.seconds(each["read"], each["written"])
    return {
        "schema": 2,
        "label": "measured",
        "steps": len(decided.all_ns),
        "step_seconds": steps,
        "step_seconds_median": median,
        "busy_seconds": busy,
        "bound_by": bound,
        "disk_s": disk_s,
    }


def steps_lines(document: dict[str, Any]) -> list[str]:
    """The same for people."""
    count = len(document["step_seconds"])
    lines = [f"steps   {format_seconds(document['step_seconds_median'])} each (median of {count})"]
    busy = document["busy_seconds"]
    if busy:
        longest = sorted(busy.items(), key=lambda each: -each[1])
        each = ", ".join(
            f"{name} {format_seconds(seconds)}" for name, seconds in longest if seconds
        )
        lines.append(f"        bound by {document['bound_by']}; busy in a step: {each}")
    disk_s = document.get("disk_s")  # None in runs of before
    if disk_s is not None:
        lines.append(
            f"        a step takes at least {format_seconds(disk_s)}, for the disk, at the rates "
            "that it has now"
        )
    return lines


@dataclass(frozen=True, slots=True)
class _Decided:
    all_ns: list[int]
    """When each step was decided, in order; the load before step 0 is none."""
    since_start_count: int
    """Those since the node last started: its counts of bytes begin there."""


def _decided(run: RunDirectory) -> _Decided:
    """As the node has it that decided the most steps: any other may have been lost."""
    found = [_decided_by(path) for path in sorted((run.path / "events").glob("node*.jsonl"))]
    return max(found, key=lambda each: len(each.all_ns), default=_Decided([], 0))


def _decided_by(path: Path) -> _Decided:
    ends: dict[int, int] = {}
    count = 0
    for record in records(path):
        if record["name"] == CLOCK:
            count = 0
        elif record["name"] == "decide" and record["step"] >= 0:
            ends[record["step"]] = record["end_ns"]
            count += 1
    return _Decided(sorted(ends.values()), count)
