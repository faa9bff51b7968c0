"""Busy time of each engine of a run, and the share of it that compute hides.

Busy is the time in which at least one span of the engine was under way; *in parallel* is how many
were, on average, while it was busy. *Compute* of a worker is forward and backward of its units
without what its training thread does meanwhile to get weights (pull_wait) and to copy gradients out
(flatten): the time that transfers and updates can hide behind. *Behind compute* is the share of an
engine's busy time in which a worker computed: its own worker for a worker's engines, each worker
for those of switch and node.

A row of memory is two numbers a span, nothing more.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from luwu.report.aligned import ALL_STEPS, Steps, Survey, survey, timed
from luwu.report.event_files import EventFile, spans
from luwu.report.intervals import Intervals, union
from luwu.report.table import line_of, widths_of
from luwu.report.timeline import TRACKS, track_of

_NOT_COMPUTE: Final = ("pull_wait", "flatten")

Tracks = Mapping[str, "array[int]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A row of the summary."""

    process: str
    name: str
    span_count: int
    busy_ns: int
    spans_ns: int
    """Lengths of all spans added up."""
    behind_compute: tuple[float, ...]
    """Shares of its busy time, by worker; none for compute itself and where none computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The summary of a run."""

    length_ns: int
    """Time from the start of the first chosen span to the end of the last."""
    engines: tuple[Engine, ...]
    survey: Survey


def busy(events: Path, steps: Steps = ALL_STEPS) -> Busy:
    """Read a run's events and sum them up. Raises ConfigError."""
    found = survey(events, steps)
    spans = {file.path: spans_of(file, found) for file in found.files}
    computes = {
        file.path: compute_of(spans[file.path]) for file in found.files if file.kind == "worker"
    }
    engines = []
    for file in found.files:
        tracks = spans[file.path]
        if file.kind == "worker":
            workers = [computes[file.path]]
        else:
            workers = list(computes.values())
        for name in sorted(tracks, key=_place):
            both = covered([tracks], name)
            if name == "compute" and file.kind == "worker":
                both = computes[file.path]
            engines.append(_engine(file, name, tracks[name], both, workers))
    length_ns = found.last_ns - found.first_ns
    return Busy(length_ns=length_ns, engines=tuple(engines), survey=found)


def summary_document(summary: Busy, updated_before_last_push_ratio: float | None) -> dict[str, Any]:
    """The summary as JSON."""
    return {
        "schema": 1,
        "length_s": summary.length_ns / 1e9,
        "engines": [
            {
                "process": engine.process,
                "engine": engine.name,
                "spans_count": engine.span_count,
                "busy_s": engine.busy_ns / 1e9,
                "spans_s": engine.spans_ns / 1e9,
                "behind_compute_ratios": list(engine.behind_compute),
            }
            for engine in summary.engines
        ],
        "updated_before_last_push_ratio": updated_before_last_push_ratio,
        "notes": list(summary.survey.notes),
    }


def summary_text(summary: Busy) -> str:
    """The summary as a table of 80 columns."""
    heads = (
        ("", "process"), ("", "engine"), ("", "spans"), ("", "busy"), ("busy, of", "all time"),
        ("in parallel", "(mean)"), ("behind", "compute"),
    )  # fmt: skip
    rows = [
        (
            engine.process,
            engine.name,
            f"{engine.span_count:,}",
            f"{engine.busy_ns / 1e9:.3f} s",
            _share(engine.busy_ns, summary.length_ns),
            "-" if engine.name == "compute" or not engine.busy_ns
            else f"{engine.spans_ns / engine.busy_ns:.1f}",
            _behind_text(engine.behind_compute),
        )
        for engine in summary.engines
    ]  # fmt: skip
    widths = widths_of([*zip(*heads, strict=True), *rows])
    lines = (*zip(*heads, strict=True), ["-" * width for width in widths], *rows)
    first = f"{summary.length_ns / 1e9:.3f} s from the first span to the last"
    return "\n".join([first, "", *(line_of(line, widths, left=2) for line in lines)])


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


def _engine(
    file: EventFile, name: str, times: array[int], both: Intervals, workers: Sequence[Intervals]
) -> Engine:
    busy_ns = both.total_ns
    shares: tuple[float, ...] = ()
    if name != "compute" and busy_ns and any(each.total_ns for each in workers):
        shares = tuple(each.within(both).total_ns / busy_ns for each in workers)
    return Engine(
        process=file.title,
        name=name,
        span_count=len(times) // 2,
        busy_ns=busy_ns,
        spans_ns=sum(times[1::2]) - sum(times[::2]),
        behind_compute=shares,
    )


def _place(name: str) -> tuple[int, str]:
    return (TRACKS.index(name) if name in TRACKS else len(TRACKS), name)


def _share(part_ns: int, whole_ns: int) -> str:
    return f"{part_ns / whole_ns:.0%}" if whole_ns else "-"


def _behind_text(shares: Sequence[float]) -> str:
    """The share; of several workers, from the least to the largest."""
    if not shares:
        return "-"
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return low if low == high else f"{low} to {high}"


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
