"""After a run: which resource did bind.

A resource is busy while at least one span of it is under way:

    disk       read, write, read_weights      of the node
    update     update, fold                   of the node
    flush      prepare                        of the node
    exchange   sum of the switch; flatten of the slowest worker
    compute    forward and backward without pull_wait and flatten, of the slowest worker

None of them need bind: where chunks are many and small, or other work takes the cores, all wait.
On cores that are all in use a span also waits for its turn.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from luwu.base.errors import ConfigError
from luwu.report.aligned import ALL_STEPS, survey, timed
from luwu.report.intervals import Intervals, union
from luwu.report.timeline import track_of

NODE: Final = {
    "disk": ("read", "write", "read_weights"),
    "update": ("update", "fold"),
    "flush": ("prepare",),
}
"""Spans of the node, by resource."""

WAITING: Final = "waiting"
"""For messages, for a turn on a core, for one another."""
BOUND_SHARE: Final = 0.5

Tracks = Mapping[str, "array[int]"]


def busy_seconds(events: Path, steps_count: int) -> dict[str, float] | None:
    """Seconds a step in which each resource was busy; None without readable spans."""
    try:
        found = survey(events, ALL_STEPS)
        spans: list[tuple[str, Tracks]] = []
        for file in found.files:
            if file.prefix:
                continue  # of another arm
            tracks: dict[str, array[int]] = {}
            for item in timed(file, found):
                if item.end_ns is not None:
                    tracks.setdefault(track_of(item.name), array("q")).extend(
                        (item.start_ns, item.end_ns)
                    )
            spans.append((file.kind, tracks))
    except ConfigError:
        return None
    if steps_count < 1 or not spans:
        return None
    nodes = [tracks for kind, tracks in spans if kind == "node"]
    busy = {name: _together(nodes, names).total_ns for name, names in NODE.items()}
    workers = [tracks for kind, tracks in spans if kind == "worker"]
    switches = [tracks for kind, tracks in spans if kind == "switch"]
    flattens = [_together([each], ("flatten",)).total_ns for each in workers]
    busy["exchange"] = _together(switches, ("sum",)).total_ns + max(flattens, default=0)
    busy["compute"] = max((_compute(each).total_ns for each in workers), default=0)
    return {name: ns / 1e9 / steps_count for name, ns in busy.items()}


def outcome(
    *, step_seconds: float, busy: Mapping[str, float] | None, disk_bytes: Mapping[str, int] | None
) -> dict[str, Any]:
    """What an arm's resources did: all null for one whose spans are not known."""
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


def _together(processes: Sequence[Tracks], names: Sequence[str]) -> Intervals:
    times = array("q")
    for tracks in processes:
        for name in names:
            times.extend(tracks.get(name, ()))
    pairs = np.array(times, np.int64).reshape(-1, 2)
    return union(pairs[:, 0], pairs[:, 1])


def _compute(tracks: Tracks) -> Intervals:
    return _together([tracks], ("compute",)).without(_together([tracks], ("pull_wait", "flatten")))
