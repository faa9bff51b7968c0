"""A run as a timeline: the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each process is a process row, and each engine of it a thread row:

    workers   step, events, compute (forward and backward of units), flatten, push, pull, pull_wait
    switch    events, sum
    node      events, read, update, write, fold, read_weights, prepare

Slices are named by unit in every process. Arrows go from the push of a gradient to the sum, the
update and the pull of the weights that it changed (`flows.py`). Beside the rows of a process stand
its counters: bytes per second of pushes and pulls, reads and writes; slots in use; sums held.

The file is written as events are read, memory does not grow with the run. The same events give the
same bytes. Times are microseconds from the run's start, or from the first of the steps that were
asked for, exact to the nanosecond; how the clocks of hosts are aligned, and how well, is in
`luwu.report.aligned`. On a GPU the rows of a worker are its host's: when work was handed out, not
when the device did it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any, Final

from luwu.base.errors import ConfigError
from luwu.report.aligned import ALL_STEPS, Steps, Survey, Timed, survey, timed
from luwu.report.counters import Rate
from luwu.report.event_files import EventFile
from luwu.report.flows import KINDS, Flows
from luwu.report.rows import COMPUTE, STEP, Lanes, LoopSteps, in_order
from luwu.report.units import extents_in

EVENTS: Final = "events"
TRACKS: Final = (
    STEP, EVENTS, "compute", "flatten", "push", "pull", "pull_wait", "load",
    "sum", "read", "update", "write", "fold", "read_weights", "prepare", "decide",
)  # fmt: skip
"""Rows of a process, from the top; those with other names follow."""

_RATES: Final = ("push", "pull", "read", "write")
"""Spans whose bytes are a counter."""
_LEVELS: Final = {"slots": "slots in use", "held_bytes": "sums held, bytes"}
"""Fields of spans that are counters."""
_WAIT_COLOURS: Final = {"pull_wait": "terrible"}
"""Reserved colours of the format: waits are red."""
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
            writer = _Writer(file, 0 if steps.is_all else found.first_ns)
            pids = {each.path: pid for pid, each in enumerate(found.files, start=1)}
            flows = _flows(found, pids)
            for each in found.files:
                _Process(writer, pids[each.path], each, found, flows).write()
            for event in flows.events():
                writer.write(event)
            writer.close()
        os.replace(partial, path)
    except OSError as exc:
        raise ConfigError(f"cannot write the timeline {path}: {exc.strerror}") from exc
    finally:
        partial.unlink(missing_ok=True)
    return found


class _Writer:
    """Writes events of the format one by one."""

    def __init__(self, file: IO[str], start_ns: int) -> None:
        """`start_ns`: the instant that times count from."""
        self._file, self._start_ns = file, start_ns
        self._separator = "\n"
        file.write('{"displayTimeUnit":"ms","traceEvents":[')

    def write(self, event: dict[str, Any]) -> None:
        """Write one event; its times are given as texts, so that they stay exact."""
        if "ts" in event:
            event["ts"] -= self._start_ns
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


def _flows(found: Survey, pids: dict[Path, int]) -> Flows:
    """The arrows to come; which workers' gradients each switch adds up is known from its ranks."""
    workers = [each for each in found.files if each.kind == "worker" and not each.prefix]
    below = {
        pids[path]: frozenset(pids[each.path] for each in workers if each.rank in ranks)
        for path, ranks in found.ranks_below.items()
    }
    return Flows({pids[each.path]: each.title for each in workers}, below)


class _Process:
    """Writes all rows and counters of one process."""

    def __init__(
        self, writer: _Writer, pid: int, file: EventFile, found: Survey, flows: Flows
    ) -> None:
        self._writer, self._pid, self._file = writer, pid, file
        self._found, self._flows = found, flows
        self._tracks: dict[str, Lanes] = {}
        self._order = {name: index for index, name in enumerate(TRACKS, start=1)}
        self._rates = {name: Rate() for name in _RATES}

    def write(self) -> None:
        """Write the process."""
        _name(self._writer, "process", self._file.title, self._pid, 0, self._pid)
        loop = LoopSteps()
        for item in in_order(timed(self._file, self._found)):
            if item.end_ns is None:
                self._write_instant(item)
                continue
            ended = loop.see(item)
            if ended is not None:
                self._write_span(ended)
            self._write_span(item)
        last = loop.end()
        if last is not None:
            self._write_span(last)
        for name, rate in self._rates.items():
            self._write_rate(name, rate, None)
        self._write_names()

    def _write_instant(self, item: Timed) -> None:
        self._tracks.setdefault(EVENTS, Lanes()).place(0, 0)
        self._writer.write({
            "ph": "i", "pid": self._pid, "tid": self._order[EVENTS] * _LANES_MAX, "s": "t",
            "cat": EVENTS, "name": _instant_title(item), "ts": item.start_ns, "args": item.fields,
        })  # fmt: skip

    def _write_span(self, span: Timed) -> None:
        assert span.end_ns is not None
        track = track_of(span.name)
        lanes = self._tracks.setdefault(track, Lanes(may_nest=track == "compute"))
        index = self._order.setdefault(track, len(self._order) + 1)
        tid = index * _LANES_MAX + lanes.place(span.start_ns, span.end_ns)
        unit = self._found.units.name_of(span.fields.get("extent"))
        fields = span.fields if unit is None else {**span.fields, "unit": unit}
        event = {
            "ph": "X", "pid": self._pid, "tid": tid, "cat": track,
            "name": _title(span.name, fields), "ts": span.start_ns,
            "dur": span.end_ns - span.start_ns, "args": fields,
        }  # fmt: skip
        if span.name in _WAIT_COLOURS:
            event["cname"] = _WAIT_COLOURS[span.name]
        self._writer.write(event)
        if span.name in KINDS and not self._file.prefix:
            at_ns = max(span.start_ns, span.end_ns - 1) if span.name == "pull" else span.start_ns
            extents = self._extents_of(span)
            self._flows.add(span.name, fields.get("step"), extents, self._pid, tid, at_ns)
        self._count(span)

    def _extents_of(self, span: Timed) -> list[int]:
        """The extents that a span is of: its own, those that a push names, all of a pull's unit."""
        if "extent" in span.fields:
            return [span.fields["extent"]]
        if span.name == "push":
            return list(extents_in(span.fields.get("extents")))
        return list(self._found.units.extents_of(span.fields.get("unit")))

    def _count(self, span: Timed) -> None:
        assert span.end_ns is not None
        for field, name in _LEVELS.items():
            if field in span.fields:
                self._write_counter(name, span.end_ns, span.fields[field])
        rate, nbytes = self._rates.get(span.name), span.fields.get("bytes")
        if rate is not None and nbytes:
            self._write_rate(span.name, rate, span.start_ns)
            rate.add(span.start_ns, span.end_ns, nbytes)

    def _write_rate(self, name: str, rate: Rate, end_ns: int | None) -> None:
        for at_ns, value in rate.before(end_ns):
            self._write_counter(f"{name}, bytes/s", at_ns, value)

    def _write_counter(self, name: str, at_ns: int, value: int) -> None:
        self._writer.write(
            {"ph": "C", "pid": self._pid, "name": name, "ts": at_ns, "args": {"value": value}}
        )

    def _write_names(self) -> None:
        for track in sorted(self._tracks, key=lambda name: self._order[name]):
            count = self._tracks[track].count
            for lane in range(count):
                tid = self._order[track] * _LANES_MAX + lane
                text = track if count == 1 else f"{track} {lane}"
                _name(self._writer, "thread", text, self._pid, tid, tid)


def _name(writer: _Writer, what: str, text: str, pid: int, tid: int, place: int) -> None:
    """Name a process or a thread, and say where it stands."""
    common = {"ph": "M", "pid": pid, "tid": tid}
    writer.write({**common, "name": f"{what}_name", "args": {"name": text}})
    writer.write({**common, "name": f"{what}_sort_index", "args": {"sort_index": place}})


def _instant_title(item: Timed) -> str:
    """The label of an instant; which step was decided is in its fields."""
    if item.name != _DECIDED:
        return item.name
    return "decided" if item.fields.get("applied") else "decided, skipped"


def _title(name: str, fields: dict[str, Any]) -> str:
    """The label of a span: its unit, or else what it is of."""
    about = next((key for key in ("unit", "chunk", "extent", "step") if key in fields), None)
    return name if about is None else f"{name} {fields[about]}"


def _microseconds(ns: int) -> str:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"
