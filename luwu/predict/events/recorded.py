"""Played steps as the events of a run lie on disk: what reads those reads these.

Each process has its file of JSON lines, as `luwu.base.events` writes them: its clock, then spans
and instants in the order in which they ended. `luwu trace`, its timeline and its summary know the
names: forward, backward, pull, push, pull_wait; read, update, write, fold, read_weights, prepare.
The links of LuWu are a process of their own, `network`: a run cannot see when they are busy. Stages
of a pipeline are workers, with forward, backward, optimizer, send, reduce and gather; a device of
data parallel training and its host are one worker.

Times are nanoseconds from the beginning of the first step, on a clock that all processes share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.events import CLOCK
from luwu.predict.events.data_parallel import PORT_IN
from luwu.predict.events.engines import Record
from luwu.predict.events.schedules import compute_of, data_of, port_of

BOOT: Final = "predicted"
"""Names the clock: no host ever had this boot."""


def told_by_stages(record: Record, stages: int) -> dict[str, Record]:
    """Spans that each stage of a step of a pipeline would record, by its process."""
    told = {f"worker-{stage}": Record() for stage in range(stages)}
    process_of = {
        engine: f"worker-{stage}"
        for stage in range(stages)
        for engine in (compute_of(stage), data_of(stage), port_of(stage))
    }
    sends = {port_of(stage) for stage in range(stages)}
    for span in record.spans:
        name = "send" if span.engine in sends else span.job.split()[0]
        told[process_of[span.engine]].spans.append(
            replace(span, engine=name, fields=(("step", 0), *span.fields))
        )
    return told


def told_by_device(record: Record) -> dict[str, Record]:
    """Spans that a device and its host would record in a step of data parallel training; what
    leaves a port enters another, and is there once."""
    spans = [
        replace(span, engine=span.job, fields=(("step", 0), *span.fields))
        for span in record.spans
        if span.engine != PORT_IN
    ]
    return {"worker-0": Record(spans)}


def write_events(told: Mapping[str, Record], folder: Path) -> list[Path]:
    """Write the events of processes into a folder that has none. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("*.jsonl")):
            raise ConfigError(f"{folder} holds events already; name a new directory")
        paths = []
        for process, record in told.items():
            paths.append(folder / f"{process}.jsonl")
            lines = (json.dumps(each, separators=(",", ":")) for each in _lines(process, record))
            paths[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot write events into {folder}: {exc.strerror}") from exc
    return paths


def _lines(process: str, record: Record) -> Iterator[dict[str, Any]]:
    """The records of a process."""
    role, _, rank = process.partition("-")
    common: dict[str, Any] = {"role": role}
    yield {"name": CLOCK, **common, "monotonic_ns": 0, "unix_ns": 0, "boot": BOOT}
    if rank:
        common["rank"] = int(rank)
    timed = [
        (
            _ns(span.end_s),
            {
                "name": span.engine, **common, "start_ns": _ns(span.start_s),
                "end_ns": _ns(span.end_s), **dict(span.fields),
            },
        )
        for span in record.spans
    ] + [
        (
            _ns(instant.at_s),
            {"name": instant.name, **common, "at_ns": _ns(instant.at_s), **dict(instant.fields)},
        )
        for instant in record.instants
    ]  # fmt: skip
    for _, line in sorted(timed, key=lambda entry: entry[0]):
        yield line


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
