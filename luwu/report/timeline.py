"""A run as a timeline: the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each process is a process row, and each engine of it a thread row:

    workers   step, events, compute (forward and backward of units), flatten, push, pull, pull_wait
    switch    events, link (bytes of the host's network cards), sum
    node      events, decisions, read, update, write, fold, read_weights, prepare

A slice has the name of its unit, wherever it was recorded. An engine that does several things at
once has numbered rows (`update 0`, `update 1`); only in compute may one slice lie within another,
as a unit's does within the root's.

Workers ask for weights ahead, so a pull may begin before the node has made them. Waits of the
training thread are red.

Of some steps alone, times begin with their first span; of all steps, with the run.

The file is written as events are read. The same events give the same bytes. Times are microseconds,
exact to the nanosecond; how the clocks of hosts are aligned, and how well, is in
`luwu.report.aligned`. On a GPU the rows of a worker are its host's: when work was handed out, not
when the device did it.

Where several spans of an engine are under way at once, they are on several rows: each goes to the
first row that is free. Spans are taken by their start; a file has them by their end, so up to
`HELD_MAX` of a process are held to sort them. One that comes later still goes to a further row,
never over another.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from luwu.base.errors import ConfigError
from luwu.report.aligned import Steps, Survey, Timed, survey, timed
from luwu.report.event_files import EventFile

HELD_MAX: Final = 65_536
"""Spans of one process in memory."""

COMPUTE: Final = ("forward", "backward")
STEP: Final = "step"
_IN_THE_LOOP: Final = (*COMPUTE, "flatten", "pull_wait")
"""Spans of the training thread: their steps are the steps of the loop."""

EVENTS: Final = "events"
DECISIONS: Final = "decisions"
TRACKS: Final = (
    STEP, EVENTS, DECISIONS, "compute", "flatten", "push", "pull", "pull_wait", "load",
    "link", "sum", "read", "update", "write", "fold", "read_weights", "prepare", "decide",
)  # fmt: skip
"""Rows of a process, from the top; those with other names follow."""

RED: Final = "terrible"
"""The format's name of it."""
_DECIDED: Final = ("node.step", "switch.step", "worker.step")
_OF_STEPS: Final = {**dict.fromkeys(_DECIDED, "decided"), "node.verdict": "verdict"}
"""Instants of every step, which have a row of their own, and their short names."""
_LANES_MAX: Final = 100_000


def write_timeline(events: Path, path: Path, steps: Steps = None) -> Survey:
    """Write the timeline of a run's events, whole or not at all. Raises ConfigError."""
    found = survey(events, steps)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="ascii") as file:
            writer = _Writer(file, 0 if steps is None else found.first_ns)
            for pid, each in enumerate(found.files, start=1):
                _Process(writer, pid, each, found).write()
            writer.close()
        os.replace(partial, path)
    except OSError as exc:
        raise ConfigError(f"cannot write the timeline {path}: {exc.strerror}") from exc
    finally:
        partial.unlink(missing_ok=True)
    return found


class _Writer:
    """Writes events of the format one by one."""

    def __init__(self, file: IO[str], origin_ns: int) -> None:
        """`origin_ns`: what times are counted from."""
        self._file, self._origin_ns = file, origin_ns
        self._separator = "\n"
        file.write('{"displayTimeUnit":"ms","traceEvents":[')

    def at(self, ns: int) -> float:
        """A time as the format has it: microseconds, exact for the days that a run lasts."""
        return (ns - self._origin_ns) / 1000

    def write(self, event: dict[str, Any]) -> None:
        """Write one event."""
        try:
            text = json.dumps(event, separators=(",", ":"), allow_nan=False)
        except ValueError:  # JSON has no word for NaN
            event["args"] = {key: str(value) for key, value in event["args"].items()}
            text = json.dumps(event, separators=(",", ":"))
        self._file.write(self._separator + text)
        self._separator = ",\n"

    def close(self) -> None:
        """Write what ends the document."""
        self._file.write("\n]}\n")


class _Process:
    """All rows of one process."""

    def __init__(self, writer: _Writer, pid: int, file: EventFile, found: Survey) -> None:
        self._writer, self._pid, self._file, self._found = writer, pid, file, found
        self._tracks: dict[str, Lanes] = {}
        self._order = {name: index for index, name in enumerate(TRACKS, start=1)}

    def write(self) -> None:
        """Write them."""
        _name(self._writer, "process", self._file.title, self._pid, 0, self._pid)
        loop = LoopSteps()
        for item in in_order(timed(self._file, self._found)):
            if item.end_ns is None:
                self._instant(item)
                continue
            ended = loop.see(item)
            if ended is not None:
                self._span(ended)
            self._span(item)
        last = loop.end()
        if last is not None:
            self._span(last)
        for track in sorted(self._tracks, key=self._order.__getitem__):
            count = self._tracks[track].count
            for lane in range(count):
                tid = self._tid(track, lane)
                text = track if count == 1 else f"{track} {lane}"
                _name(self._writer, "thread", text, self._pid, tid, tid)

    def _tid(self, track: str, lane: int) -> int:
        return self._order.setdefault(track, len(self._order) + 1) * _LANES_MAX + lane

    def _instant(self, item: Timed) -> None:
        name, track = _OF_STEPS.get(item.name, item.name), EVENTS
        if item.name in _OF_STEPS:
            track = DECISIONS
        if item.name in _DECIDED and not item.fields.get("applied"):
            name = "skipped"
        self._tracks.setdefault(track, Lanes()).place(0, 0)
        self._writer.write({
            "ph": "i", "pid": self._pid, "tid": self._tid(track, 0), "s": "t", "cat": track,
            "name": name, "ts": self._writer.at(item.start_ns), "args": item.fields,
        })  # fmt: skip

    def _span(self, span: Timed) -> None:
        assert span.end_ns is not None
        fields = span.fields
        unit = self._found.units.name_of(fields.get("extent"))
        if unit is not None:
            fields = {"unit": unit, **fields}
        track = "compute" if span.name in COMPUTE else span.name
        lanes = self._tracks.setdefault(track, Lanes(may_nest=track == "compute"))
        tid = self._tid(track, lanes.place(span.start_ns, span.end_ns))
        about = next((key for key in ("unit", "chunk", "extent", "step") if key in fields), None)
        event = {
            "ph": "X", "pid": self._pid, "tid": tid, "cat": track,
            "name": span.name if about is None else f"{span.name} {fields[about]}",
            "ts": self._writer.at(span.start_ns), "dur": (span.end_ns - span.start_ns) / 1000,
            "args": fields,
        }  # fmt: skip
        self._writer.write({**event, "cname": RED} if span.name.endswith("_wait") else event)


def _name(writer: _Writer, what: str, text: str, pid: int, tid: int, place: int) -> None:
    """Name a process or a thread, and give its position."""
    common = {"ph": "M", "pid": pid, "tid": tid}
    writer.write({**common, "name": f"{what}_name", "args": {"name": text}})
    writer.write({**common, "name": f"{what}_sort_index", "args": {"sort_index": place}})


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
        """Ends of each row's open slices, within which the next may lie; the innermost last."""
        self._last_ns: list[int] = []
        """Time before which the next slice of each row may not start."""

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
