"""After a run: how long its steps took, and the resource that limited them, measured.

A step lasts from one decision of the node to the next. A resource is busy while at least one span
of it is under way:

    disk       read, write, read_weights      of the node
    update     update, fold                   of the node
    flush      prepare                        of the node
    exchange   sum of the switch; flatten of the slowest worker
    compute    forward and backward without pull_wait and flatten, of the slowest worker

None of them need bind: where chunks are many and small, or other work takes the cores, all wait.
On cores that are all in use a span also waits for its turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.json_file import read_json
from luwu.base.quantities import format_seconds
from luwu.launch.processes.run_directory import RunDirectory
from luwu.report.aligned import survey
from luwu.report.busy import Tracks, compute_of, covered, spans_of
from luwu.report.event_files import records

FILE: Final = "steps.json"
"""Where a run keeps it."""
STEPS_MIN: Final = 2
"""Fewer have no time between them."""
NODE: Final = {
    "disk": ("read", "write", "read_weights"),
    "update": ("update", "fold"),
    "flush": ("prepare",),
}
"""Spans of the node, by resource."""

WAITING: Final = "waiting"
"""For messages, for a turn on a core, for one another."""
BOUND_SHARE: Final = 0.5


def busy_seconds(events: Path, steps_count: int) -> dict[str, float] | None:
    """Seconds a step in which each resource was busy; None without readable spans."""
    try:
        found = survey(events)
        spans: dict[str, list[Tracks]] = {"worker": [], "switch": [], "node": []}
        for file in found.files:
            spans.setdefault(file.kind, []).append(spans_of(file, found))
    except ConfigError:
        return None
    if steps_count < 1 or not any(spans.values()):
        return None
    busy = {name: covered(spans["node"], *names).total_ns for name, names in NODE.items()}
    flattens = (covered([each], "flatten").total_ns for each in spans["worker"])
    computes = (compute_of(each).total_ns for each in spans["worker"])
    busy["exchange"] = covered(spans["switch"], "sum").total_ns + max(flattens, default=0)
    busy["compute"] = max(computes, default=0)
    return {name: ns / 1e9 / steps_count for name, ns in busy.items()}


def outcome(
    *, step_seconds: float, busy: Mapping[str, float] | None, disk_bytes: Mapping[str, int] | None
) -> dict[str, Any]:
    """How busy each resource was in a step, and which limited it; null where no span is known."""
    seconds = None
    if busy is not None:  # reads and writes of pages in RAM are no work of a disk
        is_on_disk = disk_bytes is not None and any(disk_bytes.values())
        seconds = {name: each for name, each in busy.items() if name != "disk" or is_on_disk}
    return {
        "busy_seconds": seconds,
        "bound_by": bound_by(seconds, step_seconds) if seconds else None,
    }


def bound_by(seconds: Mapping[str, float], step_seconds: float) -> str:
    """The resource that was busy longest; `waiting` if none was for half of a step."""
    longest = max(seconds, key=lambda name: seconds[name])
    return longest if seconds[longest] >= BOUND_SHARE * step_seconds else WAITING


def steps_document(run: RunDirectory) -> dict[str, Any] | None:
    """Results of the steps; None for fewer than two, or without a node of this run."""
    node = read_json(run.result("node.json"))
    decided_ns = _decided(run)
    if node is None or len(decided_ns) < STEPS_MIN:
        return None
    steps = [(later - earlier) / 1e9 for earlier, later in pairwise(decided_ns)]
    median = statistics.median(steps)
    busy = busy_seconds(run.path / "events", len(decided_ns))
    did = outcome(step_seconds=median, busy=busy, disk_bytes=node["disk_bytes"])
    return {
        "schema": 3,
        "label": "measured",
        "steps": len(decided_ns),
        "step_seconds": steps,
        "step_seconds_median": median,
        "busy_seconds": did["busy_seconds"] or {},
        "bound_by": did["bound_by"],
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
    return lines


def _decided(run: RunDirectory) -> list[int]:
    """When each step was decided, in order, the load before step 0 being none.

    As the node has it that decided the most steps: any other may have been lost.
    """
    found = [_decided_by(path) for path in sorted((run.path / "events").glob("node*.jsonl"))]
    return max(found, key=len, default=[])


def _decided_by(path: Path) -> list[int]:
    return sorted(
        {
            record["step"]: record["end_ns"]
            for record in records(path)
            if record["name"] == "decide" and record["step"] >= 0
        }.values()
    )
