"""A run as a timeline: the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each process is a process row, and each engine of it a thread row:

    workers   step, events, compute (forward and backward of units), flatten, push, pull, pull_wait
    switch    events, sum
    node      events, decisions, read, update, write, fold, read_weights, prepare

A slice has the name of its unit, wherever it was recorded. An engine that does several things at
once has numbered rows (`update 0`, `update 1`); only in compute may one slice lie within another,
as a unit's does within the root's.

Workers ask for weights ahead. Where a pull was asked for before the node had made its weights, it
is two slices: `asked`, grey, until the last update of the unit has ended, and `pull` from then on.
Waits of the training thread are red.

Arrows follow a gradient from push to pull (`Flows`). Counters: bytes per second of push and pull of
each worker, and of read and write of the node; slots in use at the switch after each sum; bytes of
gradients that the node holds after each update. A push counts the gradient as it was computed, also
where an aggregator makes it smaller.

Of some steps alone, times begin with their first span, and the pulls of the step after them are
shown as well: the weights that these steps made. Of all steps, times begin with the run.

The file is written as events are read, memory does not grow with the run beyond what flows need.
The same events give the same bytes. Times are microseconds, exact to the nanosecond; how the clocks
of hosts are aligned, and how well, is in `luwu.report.aligned`. On a GPU the rows of a worker are
its host's: when work was handed out, not when the device did it.

Where several spans of an engine are under way at once, they are on several rows: each goes to the
first row that is free. Spans are taken by their start; a file has them by their end, so up to
`HELD_MAX` of a process are held to sort them. One that comes later still goes to a further row,
never over another.
"""

from __future__ import annotations

import heapq
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np

from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from luwu.report.aligned import ALL_STEPS, Steps, Survey, Timed, survey, timed
from luwu.report.event_files import EventFile, numbers_in

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
    "sum", "read", "update", "write", "fold", "read_weights", "prepare", "decide",
)  # fmt: skip
"""Rows of a process, from the top; those with other names follow."""

RATED: Final = ("push", "pull", "read", "write")
"""Spans whose bytes per second are counters."""
COLOURS: Final = {"asked": "grey"}
"""Reserved colours of the format, by span; those that end in `_wait` are `terrible`: red."""
_DECIDED: Final = "node.step"
_OF_STEPS: Final = {_DECIDED: "decided", "node.verdict": "verdict"}
"""Instants of every step, which have a row of their own, and their short names."""
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
            writer = _Writer(file, 0 if steps.is_all else found.first_ns)
            _write_run(writer, found)
            writer.close()
        os.replace(partial, path)
    except OSError as exc:
        raise ConfigError(f"cannot write the timeline {path}: {exc.strerror}") from exc
    finally:
        partial.unlink(missing_ok=True)
    return found


def _write_run(writer: _Writer, found: Survey) -> None:
    """All processes, then the arrows between them."""
    pids = {pid: file for pid, file in enumerate(found.files, start=1)}
    workers = {pid: file for pid, file in pids.items() if file.kind == "worker" and not file.prefix}
    below = {
        pid: frozenset(worker for worker, of in workers.items() if of.rank in ranks)
        for pid, file in pids.items()
        if (ranks := found.ranks_below(file)) is not None
    }
    arrows = Flows({pid: file.title for pid, file in workers.items()}, below)
    made_ns = _made_ns(found)
    for pid, file in pids.items():
        _Process(writer, pid, file, found, arrows, made_ns).write()
    for event in arrows.events():
        writer.write(event)


def _made_ns(found: Survey) -> dict[tuple[object, object], int]:
    """By step and unit: when the node had made the weights that are pulled in that step."""
    made: dict[tuple[object, object], int] = {}
    for file in found.files:
        if file.kind != "node":
            continue
        for item in timed(file, found, found.steps.and_the_one_before()):
            unit, step = found.units.name_of(item.fields.get("extent")), item.fields.get("step")
            if item.name != "update" or item.end_ns is None or unit is None or step is None:
                continue
            key = (step + 1, unit)
            made[key] = max(item.end_ns, made.get(key, item.end_ns))
    return made


class _Writer:
    """Writes events of the format one by one."""

    def __init__(self, file: IO[str], origin_ns: int) -> None:
        """`origin_ns`: what times are counted from."""
        self._file, self._origin_ns = file, origin_ns
        self._separator = "\n"
        file.write('{"displayTimeUnit":"ms","traceEvents":[')

    def write(self, event: dict[str, Any]) -> None:
        """Write one event; its times are given as texts, so that they stay exact."""
        times = ""
        if "ts" in event:
            times += f',"ts":{_microseconds(event.pop("ts") - self._origin_ns)}'
        if "dur" in event:
            times += f',"dur":{_microseconds(event.pop("dur"))}'
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


class _Process:
    """All rows of one process."""

    def __init__(
        self, writer: _Writer, pid: int, file: EventFile, found: Survey, arrows: Flows,
        made_ns: Mapping[tuple[object, object], int],
    ) -> None:  # fmt: skip
        self._writer, self._pid, self._file = writer, pid, file
        self._found, self._arrows, self._made_ns = found, arrows, made_ns
        self._about = found.abouts.get(file.path, {})
        self._tracks: dict[str, Lanes] = {}
        self._order = {name: index for index, name in enumerate(TRACKS, start=1)}
        self._rates = {name: Rate() for name in RATED}

    def write(self) -> None:
        """Write them."""
        _name(self._writer, "process", self._file.title, self._pid, 0, self._pid)
        loop = LoopSteps()
        steps = replace(self._found.steps, with_next_pulls=True)
        for item in in_order(timed(self._file, self._found, steps)):
            if item.end_ns is None:
                self._instant(item)
                continue
            self._write_rates(item.start_ns)
            ended = loop.see(item)
            if ended is not None:
                self._span(ended)
            self._span(item)
        last = loop.end()
        if last is not None:
            self._span(last)
        self._write_rates(None)
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
        if item.name == _DECIDED and not item.fields.get("applied"):
            name = "skipped"
        self._tracks.setdefault(track, Lanes()).place(0, 0)
        self._writer.write({
            "ph": "i", "pid": self._pid, "tid": self._tid(track, 0), "s": "t", "cat": track,
            "name": name, "ts": item.start_ns, "args": item.fields,
        })  # fmt: skip

    def _span(self, span: Timed) -> None:
        """A span's slices, and what arrows and counters take from it."""
        assert span.end_ns is not None
        fields, start_ns, end_ns = span.fields, span.start_ns, span.end_ns
        unit = self._found.units.name_of(fields.get("extent"))
        if unit is not None:
            fields = {"unit": unit, **fields}
        track = track_of(span.name)
        lanes = self._tracks.setdefault(track, Lanes(may_nest=track == "compute"))
        tid = self._tid(track, lanes.place(start_ns, end_ns))
        if span.name == "pull":
            made_ns = self._made_ns.get((fields.get("step"), fields.get("unit")), start_ns)
            if start_ns < made_ns <= end_ns:
                self._slice(tid, track, "asked", start_ns, made_ns, fields)
                start_ns = made_ns
        self._slice(tid, track, span.name, start_ns, end_ns, fields)
        if span.name in KINDS:
            extents = self._extents(span.name, fields)
            self._arrows.add(span.name, fields.get("step"), extents, self._pid, tid, start_ns)
        if span.name in RATED and type(fields.get("bytes")) is int:
            self._rates[span.name].add(start_ns, end_ns, fields["bytes"])
        self._held(end_ns, fields)

    def _slice(
        self, tid: int, track: str, name: str, start_ns: int, end_ns: int, fields: dict[str, Any]
    ) -> None:  # fmt: skip
        about = next((key for key in ("unit", "chunk", "extent", "step") if key in fields), None)
        event = {
            "ph": "X", "pid": self._pid, "tid": tid, "cat": track,
            "name": name if about is None else f"{name} {fields[about]}",
            "ts": start_ns, "dur": end_ns - start_ns, "args": fields,
        }  # fmt: skip
        colour = "terrible" if name.endswith("_wait") else COLOURS.get(name)
        self._writer.write(event if colour is None else {**event, "cname": colour})

    def _extents(self, name: str, fields: Mapping[str, Any]) -> Iterable[int]:
        """The extents that a span is about; none if the run did not record its units."""
        if name == "pull":
            return self._found.units.extents_of(fields.get("unit"))
        if name == "push":
            return numbers_in(fields.get("extents"))
        return [fields["extent"]] if type(fields.get("extent")) is int else []

    def _held(self, at_ns: int, fields: Mapping[str, Any]) -> None:
        """What a switch or a node held when the span ended."""
        slots_max, bytes_max = self._about.get("slots_limit"), self._about.get("sums_bytes_max")
        if "slots" in fields:
            of = "" if slots_max is None else f" of {slots_max}"
            self._counter(f"slots{of}", "in use", at_ns, fields["slots"])
        if "held_bytes" in fields:
            of = "" if bytes_max is None else f" of {format_bytes(bytes_max)}"
            self._counter(f"gradients held{of}", "bytes", at_ns, fields["held_bytes"])

    def _write_rates(self, before_ns: int | None) -> None:
        for name, rate in self._rates.items():
            for at_ns, bytes_per_s in rate.before(before_ns):
                self._counter(name, "bytes/s", at_ns, bytes_per_s)

    def _counter(self, name: str, unit: str, at_ns: int, value: int) -> None:
        self._writer.write({
            "ph": "C", "pid": self._pid, "tid": 0, "name": name, "ts": at_ns,
            "args": {unit: value},
        })  # fmt: skip


def _name(writer: _Writer, what: str, text: str, pid: int, tid: int, place: int) -> None:
    """Name a process or a thread, and give its position."""
    common = {"ph": "M", "pid": pid, "tid": tid}
    writer.write({**common, "name": f"{what}_name", "args": {"name": text}})
    writer.write({**common, "name": f"{what}_sort_index", "args": {"sort_index": place}})


def _microseconds(ns: int) -> str:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


class Rate:
    """Bytes per second of the spans of one engine, which come in the order of their start.

    The bytes of a span are spread evenly over its time; those of spans under way at once add up.
    """

    def __init__(self) -> None:
        self._changes: list[tuple[int, int]] = []
        """Heap of (time, change): changes that lie ahead."""
        self._now = 0

    def add(self, start_ns: int, end_ns: int, nbytes: int) -> None:
        """A span; one without a length has no rate."""
        if end_ns > start_ns:
            rate = nbytes * 1_000_000_000 // (end_ns - start_ns)
            heapq.heappush(self._changes, (start_ns, rate))
            heapq.heappush(self._changes, (end_ns, -rate))

    def before(self, end_ns: int | None) -> Iterator[tuple[int, int]]:
        """(time, bytes per second from then on) of the changes before a time; None: of all."""
        while self._changes and (end_ns is None or self._changes[0][0] < end_ns):
            at_ns = self._changes[0][0]
            while self._changes and self._changes[0][0] == at_ns:
                self._now += heapq.heappop(self._changes)[1]
            yield at_ns, self._now


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


KINDS: Final = ("push", "sum", "fold", "update", "pull")
"""Names of the spans that flows go through, in their order."""
CATEGORY: Final = "gradient"

_PUSH, _SUM, _FOLD, _UPDATE, _PULL = range(len(KINDS))
_FIELDS: Final = 6


class _Point(NamedTuple):
    """A slice that a flow may go through."""

    step: int
    """The step of the gradient: one less than that of the pull."""
    extent: int
    kind: int
    at_ns: int
    pid: int
    tid: int


class Flows:
    """The way of a gradient as arrows between slices: push, sum, update, pull. Collects the slices
    of all processes, 48 bytes each, and connects them.

    Each worker has an arrow of its own from its push of an extent to the sum of the switch, from
    there to the update of the node, and on to its pull of the weights that the update made:

        worker 0  push -.            .-> pull
                         > sum > update
        worker 1  push -'            '-> pull

    All arrows of one extent in one step have one id; those of one worker also have one name, the
    worker's, because a flow is a chain: Perfetto tells flows apart by id, category and name. Arrows
    leave and reach slices at their starts. Perfetto draws an arrow from the slice that starts first
    to the other, whatever the order of events; so a pull has a slice that starts when its weights
    were made.

    Which slices of a step and an extent, where there are several:

        push      the last of the worker: earlier ones are of other backwards, or of a lost attempt
        sum       the last of each switch above the worker, the nearest first
        fold      the last, where the node adds up several backwards before it updates
        update    the last: weights are sent when all pages of the extent are updated
        pull      the worker's first whose slice starts after that

    A gradient that no switch summed goes from the push to the update, and an arrow that would go
    back in time, as between hosts whose clocks do not agree, is left out with all that follow.
    """

    def __init__(self, names: Mapping[int, str], below: Mapping[int, frozenset[int]]) -> None:
        """`names`: of workers by pid; `below`: by a switch's pid, pids of the workers whose
        gradients it adds up, where these are not all."""
        self._names, self._below = names, below
        self._points = array("q")

    def add(
        self, name: str, step: object, extents: Iterable[int], pid: int, tid: int, at_ns: int
    ) -> None:
        """A slice of one of `KINDS` that starts at `at_ns`."""
        if type(step) is not int:
            return
        kind = KINDS.index(name)
        for extent in extents:
            self._points.extend((step - (kind == _PULL), extent, kind, at_ns, pid, tid))

    def events(self) -> Iterator[dict[str, Any]]:
        """Flow events, those of one id together, in the order of time."""
        points_PF = np.array(self._points, np.int64).reshape(-1, _FIELDS)
        extent_count = int(points_PF[:, 1].max(initial=0)) + 1
        points_PF = points_PF[np.lexsort(points_PF.T[3::-1])]
        points = (_Point(*point.tolist()) for point in points_PF)
        for (step, extent), group in groupby(points, key=lambda point: point[:2]):
            number, found = 1 + step * extent_count + extent, list(group)
            events = [
                event
                for pid, name in self._names.items()
                for event in _chain(self._way(pid, found), number, name)
            ]
            yield from sorted(events, key=lambda event: int(event["ts"]))

    def _way(self, worker: int, points: list[_Point]) -> list[_Point]:
        """The slices that a worker's gradient of an extent went through, in the order of time."""
        pushes = [each for each in points if each.kind == _PUSH and each.pid == worker]
        if not pushes:
            return []
        way = pushes[-1:]
        last_sums = {
            each.pid: each
            for each in points
            if each.kind == _SUM and worker in self._below.get(each.pid, (worker,))
        }
        next_ones = sorted(last_sums.values(), key=lambda each: each.at_ns)
        for kind in (_FOLD, _UPDATE):
            next_ones += [each for each in points if each.kind == kind][-1:]
        for each in next_ones:
            if each.at_ns < way[-1].at_ns:
                return way
            way.append(each)
        pulls = (each for each in points if each.kind == _PULL and each.pid == worker)
        if way[-1].kind == _UPDATE:
            way += [each for each in pulls if each.at_ns >= way[-1].at_ns][:1]
        return way


def _chain(way: list[_Point], number: int, name: str) -> Iterator[dict[str, Any]]:
    """The events of one flow; none unless it has two ends."""
    for index, point in enumerate(way if len(way) > 1 else ()):
        phase = "s" if index == 0 else "f" if index == len(way) - 1 else "t"
        yield {
            "ph": phase, "bp": "e", "id": number, "cat": CATEGORY, "name": name,
            "pid": point.pid, "tid": point.tid, "ts": point.at_ns,
        }  # fmt: skip
