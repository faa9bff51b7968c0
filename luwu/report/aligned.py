"""The spans and instants of a run, of the steps asked for, all on one clock.

Processes of one boot of one host share the monotonic clock, so their times are compared as they
are, exactly. Each boot gets one offset to wall time, the median of its clock records; hosts are
then as well aligned as their wall clocks agree (with NTP typically some milliseconds, so a sum may
seem to begin before the last of its pushes did). Times are nanoseconds from the run's start: the
earliest of all clock records and spans.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from luwu.base.errors import ConfigError
from luwu.base.events import CLOCK, NODE_ABOUT
from luwu.report.event_files import EventFile, Units, event_files, garbage, records

RESTARTED: Final = "started again"
"""Name of the instant at which a process was started again."""


Steps: TypeAlias = range | None
"""A range of steps; None is all of them."""


def has_step(steps: Steps, step: object) -> bool:
    """True if a record with this step is one of them."""
    return steps is None or (isinstance(step, int) and step in steps)


def steps_text(steps: Steps) -> str:
    """The steps for people."""
    if steps is None:
        return "all steps"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


STEADY_COUNT: Final = 5
_STEP: Final = "node.step"
"""Name of the node's record of each step."""


def steady_steps(folder: Path) -> Steps:
    """The five steps in the middle of a run, without its first one, in which all start up.

    All that there are if they are fewer. Raises ConfigError.
    """
    files = event_files(folder)
    found = [
        record["step"]
        for file in files
        for record in (records(file.path, mark=_STEP.encode()) if file.kind == "node" else ())
        if record["name"] == _STEP and type(record.get("step")) is int
    ]
    if not found:  # a host without the node
        every = (record.get("step") for file in files for record in records(file.path))
        found = [step for step in every if type(step) is int and step >= 0]
    if not found:
        return None
    first, end = min(found), max(found) + 1
    middle = first + (end - first - STEADY_COUNT) // 2
    begin = min(max(middle, first + 1), end - 1)
    return range(begin, min(begin + STEADY_COUNT, end))


def parse_steps(text: str, name: str) -> range:
    """`A:B` is A up to and without B, `A` is one. Raises ConfigError."""
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text, flags=re.ASCII)
    if found is None:
        raise ConfigError(f"{name}: {text!r} are not steps; write A:B, from A up to and without B")
    first = int(found[1])
    steps = range(first, first + 1 if found[2] is None else int(found[2]))
    if not steps:
        raise ConfigError(f"{name}: no step is from {first} up to and without {steps.stop}")
    return steps


# ---------------------------------------------------------------------- one clock for all files


@dataclass(slots=True)
class Survey:
    """The contents of all event files, and the offsets that align their clocks."""

    files: list[EventFile]
    steps: Steps
    cut_count: int = 0
    origin_ns: int = 0
    """The run's start: wall time where any clock is known, else monotonic."""
    first_ns: int = 0
    """Start of the earliest chosen span, from the run's start."""
    last_ns: int = 0
    """End of the latest."""
    span_count: int = 0
    """Chosen spans."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Wall time minus monotonic time, by boot."""
    units: Units = field(default_factory=Units)
    """Units as a node recorded them; none if there is no such record."""

    @property
    def notes(self) -> list[str]:
        """Remarks for the reader, a sentence each."""
        found = []
        if self.cut_count:
            found.append(f"{self.cut_count} lines were cut short by a kill and are left out")
        if len(self.offsets) > 1:
            found.append(
                f"{len(self.offsets)} hosts are aligned by their wall clocks; between them, times "
                "are as good as these agree"
            )
        return found

    def shift_ns(self, boot: str) -> int:
        """The offset from a monotonic time to the run's start."""
        return self.offsets[boot] - self.origin_ns


def survey(folder: Path, steps: Steps = None) -> Survey:
    """Read all files of a run once. Raises ConfigError."""
    found = Survey(event_files(folder), steps)
    offsets: dict[str, list[int]] = {}
    earliest: dict[str, int] = {}
    chosen: dict[str, tuple[int, int]] = {}

    def count_cut() -> None:
        found.cut_count += 1

    for file in found.files:
        boot: str | None = None
        for record in records(file.path, on_cut=count_cut):
            if record["name"] == CLOCK:
                boot, start_ns = record["boot"], record["monotonic_ns"]
                offsets.setdefault(record["boot"], []).append(record["unix_ns"] - start_ns)
            elif boot is None:
                raise garbage(file.path, 1, "no clock")
            elif record["name"] == NODE_ABOUT:
                found.units = Units(record["units"])
                continue
            elif "end_ns" in record:
                start_ns, end_ns = record["start_ns"], record["end_ns"]
                if has_step(steps, record.get("step")):
                    found.span_count += 1
                    low, high = chosen.get(boot, (start_ns, end_ns))
                    chosen[boot] = min(low, start_ns), max(high, end_ns)
            else:
                continue
            earliest[boot] = min(start_ns, earliest.get(boot, start_ns))
    found.offsets = {boot: statistics.median_low(each) for boot, each in offsets.items()}
    found.origin_ns = min((ns + found.offsets[boot] for boot, ns in earliest.items()), default=0)
    shifts = {boot: found.shift_ns(boot) for boot in chosen}
    found.first_ns = min((chosen[boot][0] + ns for boot, ns in shifts.items()), default=0)
    found.last_ns = max((chosen[boot][1] + ns for boot, ns in shifts.items()), default=0)
    return found


@dataclass(frozen=True, slots=True)
class Timed:
    """A span or an instant, from the run's start."""

    name: str
    start_ns: int
    end_ns: int | None
    """End of a span; None for an instant."""
    fields: dict[str, Any]
    """The fields that identify it: step, unit, extent, chunk and so on."""


def timed(file: EventFile, found: Survey) -> Iterator[Timed]:
    """The spans and instants of the chosen steps in a file, in its order; instants without a step
    if they lie among the chosen spans."""
    steps = found.steps
    shift_ns: int | None = None
    for record in records(file.path):
        name, at_ns = record.pop("name"), record.pop("at_ns", None)
        record.pop("role", None)
        if name == NODE_ABOUT:
            continue
        if name == CLOCK:
            is_first, shift_ns = shift_ns is None, found.shift_ns(record["boot"])
            if is_first:
                continue
            name, at_ns = RESTARTED, record["monotonic_ns"]
            record.clear()
        assert shift_ns is not None  # `survey` has seen that a clock is first
        if "end_ns" in record:
            start_ns, end_ns = record.pop("start_ns"), record.pop("end_ns")
            if has_step(steps, record.get("step")):
                yield Timed(name, start_ns + shift_ns, end_ns + shift_ns, record)
            continue
        at_ns += shift_ns
        is_near = found.first_ns <= at_ns <= found.last_ns
        if has_step(steps, record["step"]) if "step" in record else steps is None or is_near:
            yield Timed(name, at_ns, None, record)
