"""A run as a timeline: the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each process is a process row, and each engine of it a thread row:

    workers   step, events, compute (forward and backward of units), flatten, push, pull, pull_wait
    switch    events, sum
    node      events, read, update, write, fold, read_weights, prepare

Slices of a row must not overlap in part. Where several spans of an engine are under way at once,
they stand on numbered rows (`update 0`, `update 1`): each goes to the first row that is free. Only
in compute may one slice lie within another, as a unit's does within the root's. Spans are taken
by their start; a file has them by their end, so up to `HELD_MAX` of a process are held to sort
them. One that comes later still goes to a further row, never over another.

The file is written as events are read, memory does not grow with the run. The same events give the
same bytes. Times are microseconds from the run's start, exact to the nanosecond; how the clocks of
hosts are aligned, and how well, is in `luwu.report.aligned`. On a GPU the rows of a worker are its
host's: when work was handed out, not when the device did it.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from luwu.base.errors import ConfigError
from luwu.report.aligned import ALL_STEPS, Steps, Survey, Timed, survey, timed
from luwu.report.event_files import EventFile

HELD_MAX: Final = 65_536
"""Spans of one process in memory."""

COMPUTE: Final = ("forward", "backward")
STEP: Final = "step"
EVENTS: Final = "events"
TRACKS: Final = (
    STEP, EVENTS, "compute", "flatten", "push", "pull", "pull_wait", "load",
    "sum", "read", "update", "write", "fold", "read_weights", "prepare", "decide",
)  # fmt: skip
"""Rows of a process, from the top; those with other names follow."""

_IN_THE_LOOP: Final = (*COMPUTE, "flatten", "pull_wait")
"""Spans of the training thread: their steps are the steps of the loop."""
_DECIDED: Final = "node.step"
_LANES_MAX: Final = 100_000


def track_of(name: str) -> str:
    """The engine that a span belongs to."""
    return "compute" if name in COMPUTE else name


def write_timeline(events: Path, path: Path, steps: Steps = ALL_STEPS) -> Survey:
    """Write the timeline of a run's events, whole or not at all. Raises ConfigError."""
    found = survey(events, steps)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="ascii") as file:
            writer = _Writer(file)
            for pid, each in enumerate(found.files, start=1):
                _write_process(writer, pid, each, found)
            writer.close()
        os.replace(partial, path)
    except OSError as exc:
        raise ConfigError(f"cannot write the timeline {path}: {exc.strerror}") from exc
    finally:
        partial.unlink(missing_ok=True)
    return found


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
        """By row: ends of the slices that the next one may lie within, the innermost last."""
        self._last_ns: list[int] = []
        """By row: the next slice may not start before."""

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


class _LoopSteps:
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


class _Writer:
    """Writes events of the format one by one."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._separator = "\n"
        file.write('{"displayTimeUnit":"ms","traceEvents":[')

    def write(self, event: dict[str, Any]) -> None:
        """Write one event; its times are given as texts, so that they stay exact."""
        times = "".join(
            f',"{key}":{_microseconds(event.pop(key))}' for key in ("ts", "dur") if key in event
        )
        try:
            text = json.dumps(event, separators=(",", ":"), allow_nan=False)
        except ValueError:  # JSON has no word for NaN
            event["args"] = {key: str(value) for key, value in event["args"].items()}
            text = json.dumps(event, separators=(",", ":"))
        self._file.write(f"{self._separator}{text[:-1]}{times}}}")
        self._separator = ",\n"

    def close(self) -> None:
        """Write what ends the document."""
        self._file.write("\n]}\n")


def _write_process(writer: _Writer, pid: int, file: EventFile, found: Survey) -> None:
    """All rows of one process."""
    _name(writer, "process", file.title, pid, 0, pid)
    tracks: dict[str, Lanes] = {}
    order: dict[str, int] = {name: index for index, name in enumerate(TRACKS, start=1)}
    loop = _LoopSteps()

    def write_span(span: Timed) -> None:
        assert span.end_ns is not None
        track = track_of(span.name)
        lanes = tracks.setdefault(track, Lanes(may_nest=track == "compute"))
        index = order.setdefault(track, len(order) + 1)
        lane = lanes.place(span.start_ns, span.end_ns)
        writer.write({
            "ph": "X", "pid": pid, "tid": index * _LANES_MAX + lane, "cat": track,
            "name": _title(span), "ts": span.start_ns, "dur": span.end_ns - span.start_ns,
            "args": span.fields,
        })  # fmt: skip

    for item in in_order(timed(file, found)):
        if item.end_ns is None:
            tracks.setdefault(EVENTS, Lanes()).place(0, 0)
            writer.write({
                "ph": "i", "pid": pid, "tid": order[EVENTS] * _LANES_MAX, "s": "t", "cat": EVENTS,
                "name": _title(item), "ts": item.start_ns, "args": item.fields,
            })  # fmt: skip
            continue
        ended = loop.see(item)
        if ended is not None:
            write_span(ended)
        write_span(item)
    last = loop.end()
    if last is not None:
        write_span(last)
    for track in sorted(tracks, key=lambda name: order[name]):
        for lane in range(tracks[track].count):
            tid = order[track] * _LANES_MAX + lane
            text = track if tracks[track].count == 1 else f"{track} {lane}"
            _name(writer, "thread", text, pid, tid, tid)


def _name(writer: _Writer, what: str, text: str, pid: int, tid: int, place: int) -> None:
    """Name a process or a thread, and say where it stands."""
    common = {"ph": "M", "pid": pid, "tid": tid}
    writer.write({**common, "name": f"{what}_name", "args": {"name": text}})
    writer.write({**common, "name": f"{what}_sort_index", "args": {"sort_index": place}})


def _title(item: Timed) -> str:
    """The label of a span."""
    fields = item.fields
    if item.end_ns is None:
        if item.name != _DECIDED:
            return item.name
        return f"step {fields.get('step')} decided" + ("" if fields.get("applied") else ", skipped")
    about = next((key for key in ("unit", "chunk", "extent", "step") if key in fields), None)
    return item.name if about is None else f"{item.name} {fields[about]}"


def _microseconds(ns: int) -> str:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"
