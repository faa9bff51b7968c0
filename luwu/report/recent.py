"""The event files of a run, followed as they grow.

Of each process the latest spans are held, enough for some steps, and all instants are handed on:
a file of any length is read once, and only its latest spans are parsed. A file that was begun while
the run is watched is found at the next `read`.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from luwu.base.events import CLOCK, LINK
from luwu.base.foreign import LogFollower
from luwu.base.json_file import json_object
from luwu.report.event_files import EventFile, event_files
from luwu.report.lanes import COMPUTE, DOWN, UP, WAIT, Lanes, Span, make_lanes

SPANS_MAX: Final = 20_000
"""Held of each process, at most."""
STEPS_HELD: Final = 22
"""Spans of older steps are dropped."""
_SPAN_MARK: Final = '"end_ns":'

OnInstant = Callable[["ProcessEvents", dict[str, Any]], None]


class ProcessEvents:
    """The events of one process."""

    def __init__(self, file: EventFile) -> None:
        self.file = file
        self.spans: deque[dict[str, Any]] = deque(maxlen=SPANS_MAX)
        self.starts_count = 0
        """Times the process was started."""
        self.shift_ns = 0
        """Nanoseconds from its monotonic clock to wall time."""
        self._newest = 0
        """The latest step that a span names."""
        self._boot = ""
        self._lines = LogFollower(file.path)

    def unix_ns(self, monotonic_ns: int) -> int:
        """Wall time of an instant of this process."""
        return monotonic_ns + self.shift_ns

    def read(self, on_instant: OnInstant) -> None:
        """Take in what was appended since."""
        spans = deque[str](maxlen=SPANS_MAX)
        for line in self._lines.lines():
            if _SPAN_MARK in line:
                spans.append(line)
            else:
                self._take(line, on_instant)
        for line in spans:
            self._take(line, on_instant)

    def _take(self, line: str, on_instant: OnInstant) -> None:
        record = json_object(line)
        name = record.get("name")
        if name is None:
            return  # cut short by a kill: luwu trace says so
        if name == CLOCK:
            if record["boot"] != self._boot:
                self._boot = record["boot"]
                self.shift_ns = record["unix_ns"] - record["monotonic_ns"]
            self.starts_count += 1
            record["at_ns"] = record["monotonic_ns"]
        if "end_ns" in record:
            self._hold(record)
        else:
            on_instant(self, record)

    def _hold(self, span: dict[str, Any]) -> None:
        self.spans.append(span)
        self._newest = max(self._newest, span.get("step", 0))
        while self.spans[0].get("step", 0) < self._newest - STEPS_HELD:
            self.spans.popleft()


class RecentEvents:
    """The events of all processes of a run."""

    def __init__(self, folder: Path, on_instant: OnInstant) -> None:
        self._folder, self._on_instant = folder, on_instant
        self._processes: dict[Path, ProcessEvents] = {}

    def read(self) -> None:
        """Take in what the processes wrote since."""
        if not any(self._folder.glob("*.jsonl")):
            return
        for file in event_files(self._folder):
            if file.path not in self._processes:
                self._processes[file.path] = ProcessEvents(file)
            self._processes[file.path].read(self._on_instant)

    def of(self, *kinds: str) -> list[ProcessEvents]:
        """The processes of these kinds, by rank."""
        found = [each for each in self._processes.values() if each.file.kind in kinds]
        return sorted(found, key=lambda each: (each.file.kind, each.file.rank))


STEPS_MAX: Final = 20
"""Last steps of which the typical one is chosen."""

# ---------------------------------------------------------------------- the last steps as lanes
# A step begins for a worker with its first forward, or its wait for the weights of one, and lasts
# until the next step's. Processes on several hosts are aligned by their wall clocks.

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


def typical_step(events: RecentEvents, steps: Sequence[int], usual_s: float | None) -> int:
    """The one of some recent steps whose duration is closest to `usual_s` seconds, or to their
    median where that is not known."""
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


def lanes_of_step(events: RecentEvents, step: int) -> Lanes:
    """A step as that worker saw it whose compute took the median time of all."""
    found = sorted(
        (_lanes_of(events, worker, step) for worker in events.of("worker") if worker.spans),
        key=lambda lanes: lanes.busy[COMPUTE] * lanes.length_s,
    )
    return found[(len(found) - 1) // 2]


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
        usual = {way: _usual_rate(process.spans, way) for way in (UP, DOWN)}
        for record in process.spans:
            from_ns = process.unix_ns(record["start_ns"]) - start_ns
            to_ns = process.unix_ns(record["end_ns"]) - start_ns
            if to_ns <= 0 or from_ns >= length_ns:
                continue
            name, span = record["name"], (from_ns / 1e9, to_ns / 1e9)
            if name == LINK:
                for way, rate in usual.items():
                    busy_ns = min(to_ns - from_ns, record[way] / rate)
                    spans.setdefault(way, []).append(((to_ns - busy_ns) / 1e9, to_ns / 1e9))
                continue
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


def _usual_rate(spans: Iterable[dict[str, Any]], way: str) -> float:
    """The rate in bytes a nanosecond at which, or faster, a link carried half of its bytes."""
    found = sorted(
        (span[way] / (span["end_ns"] - span["start_ns"]), span[way])
        for span in spans
        if span["name"] == LINK
    )
    left = sum(nbytes for _, nbytes in found) / 2
    for rate, nbytes in found:
        left -= nbytes
        if left <= 0:
            return rate or 1.0
    return 1.0
