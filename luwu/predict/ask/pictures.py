"""A played record as rows of a picture: the activity of every engine over time.

Each engine has a row, or several where it was at more than one job at once. Forward is paler than
backward. `luwu.report.lanes_chart` draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from luwu.base.errors import ConfigError
from luwu.predict.driven.driven import Driven
from luwu.predict.events.data_parallel import ENGINES as DEVICE_ENGINES
from luwu.predict.events.engines import Record, Span
from luwu.predict.events.schedules import compute_of

ENGINES: Final = ("compute", "down", "up", "disk read", "node memory", "disk write")
"""Engines of a step of LuWu, from the worker to the drives."""
STEPS_SHOWN: Final = 2


@dataclass(frozen=True, slots=True)
class Row:
    """Spans of an engine that do not overlap."""

    title: str
    busy_ratio: float
    """Busy share of the window, over all rows of the engine."""
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Rows from the top, between two times in seconds."""

    rows: tuple[Row, ...]
    start_s: float
    end_s: float
    marks_s: dict[str, float]


def picture(
    record: Record,
    *,
    start_s: float = 0.0,
    end_s: float | None = None,
    engines: Sequence[str] = (),
    marks_s: dict[str, float] | None = None,
) -> Picture:
    """The part of a record in a window of time, by default all of it; engines in the given
    order, or by their first span. Raises ConfigError for an engine without spans, or a window
    without any.
    """
    end_s = record.end_s if end_s is None else end_s
    inside = [each for each in record.spans if each.start_s < end_s and each.end_s > start_s]
    if not inside:
        raise ConfigError(
            f"a picture from {start_s:g} s to {end_s:g} s: nothing happens then; the record ends "
            f"at {record.end_s:g} s"
        )
    inside.sort(key=lambda span: (span.start_s, span.end_s))
    in_order = sorted(record.spans, key=lambda span: span.start_s)
    known = list(dict.fromkeys(span.engine for span in in_order))
    for engine in engines:
        if engine not in known:
            raise ConfigError(f"{engine!r} is not an engine here; they are {', '.join(known)}")
    rows = []
    for engine in engines or known:
        rows += _rows(engine, [span for span in inside if span.engine == engine], start_s, end_s)
    return Picture(tuple(rows), start_s, end_s, marks_s or {})


def steps_picture(played: Driven, steps: int = STEPS_SHOWN) -> Picture:
    """The last steps that were played; drives are left out where nothing is on them."""
    ends = played.ends_s
    first = max(0, len(ends) - steps)
    start_s = ends[first - 1] if first else 0.0
    record = Record([_named(span) for span in played.record.spans])
    used = {span.engine for span in record.spans}
    return picture(
        record, start_s=start_s, end_s=ends[-1],
        engines=[engine for engine in ENGINES if engine in used],
        marks_s={f"step {index} ends": ends[index] for index in range(first, len(ends))},
    )  # fmt: skip


def _named(span: Span) -> Span:
    """With its step, and its unit, extent or chunk, in the name of its job."""
    fields = dict(span.fields)
    words = [f"step {fields['step']}"] if "step" in fields else []
    words.append(span.job)
    words += [str(fields["unit"])] if "unit" in fields else []
    words += [f"{name} {fields[name]}" for name in ("extent", "chunk") if name in fields]
    return replace(span, job=" ".join(words))


def stages_picture(record: Record, stages: int) -> Picture:
    """The activity of each stage of a pipeline in a step."""
    return picture(record, engines=[compute_of(stage) for stage in range(stages)])


def units_picture(record: Record) -> Picture:
    """The activity of a device and its host in a step of data parallel training; engines that it
    does not use are left out."""
    used = {span.engine for span in record.spans}
    return picture(record, engines=[engine for engine in DEVICE_ENGINES if engine in used])


def is_pale(span: Span) -> bool:
    """Forward, which backward stands beside."""
    return "forward" in span.job.split()


def _rows(engine: str, spans: list[Span], start_s: float, end_s: float) -> list[Row]:
    """Each span in the first row that is free; one row where there are none."""
    lanes: list[list[Span]] = [[]]
    for span in spans:
        free = next((lane for lane in lanes if not lane or lane[-1].end_s <= span.start_s), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    busy_s = sum(min(span.end_s, end_s) - max(span.start_s, start_s) for span in spans)
    ratio = busy_s / ((end_s - start_s) * len(lanes))
    names = [engine] if len(lanes) == 1 else [f"{engine} {index}" for index in range(len(lanes))]
    return [Row(name, ratio, tuple(lane)) for name, lane in zip(names, lanes, strict=True)]
