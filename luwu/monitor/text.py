"""The status of a run for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from luwu.base.quantities import format_bytes, format_duration, format_seconds
from luwu.report.lanes import TITLES, lanes_of

COLUMNS: Final = 80
BAR: Final = 24
"""Characters of a full bar."""


def status_text(document: Mapping[str, Any], *, details: bool = False) -> str:
    """The status; with `details`, all counters too. No line is longer than 80 characters."""
    lines = [*_head(document), *_processes(document), *_step(document), *_problems(document)]
    if details:
        lines += _counters(document)
    return "\n".join(line[:COLUMNS].rstrip() for line in lines)


def _head(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"run       {Path(document['run']).name}"
    yield from _wrapped(f"state     {document['text']}")
    if document["security"] is not None:
        yield f"security  {document['security']}"
    steps = document["steps"]
    total = "" if steps["total"] is None else f" of {steps['total']:,}"
    parts = [f"{steps['done']:,} decided{total}"]
    if steps["per_s"] is not None:
        parts.append(f"{steps['per_s']:.3g} steps/s")
    if steps["left_s"] is not None:
        parts.append(f"{format_duration(steps['left_s'])} left")
    yield f"steps     {', '.join(parts)}"
    degraded = document["degraded"]
    if degraded is not None:
        yield from _wrapped(f"DEGRADED  since step {degraded['step']:,} {degraded['text']}")
    last = [
        f"{name} {found['values'][-1]:.5g}"
        for name, found in document["scalars"].items()
        if found["values"]
    ]
    if last:
        yield f"last      {'  '.join(last)}"


def _wrapped(words: str) -> Iterator[str]:
    """A row in as many lines as it takes."""
    while len(words) > COLUMNS:
        cut = words.rfind(" ", 12, COLUMNS)
        cut = COLUMNS if cut < 0 else cut
        yield words[:cut]
        words = " " * 10 + words[cut:].lstrip()
    yield words


def _processes(document: Mapping[str, Any]) -> Iterator[str]:
    memory = {row["name"]: row for row in document["memory"]}
    for each in document["processes"]:
        row = memory.get(each["name"])
        text = "gone"
        if each["is_alive"]:
            text = f"pid {each['pid']:<8}"
            if row is not None and row["now_bytes"] is not None:
                text += f"{format_bytes(row['now_bytes']):>11}"
                if row["budget_bytes"] is not None:
                    text += f" (budget {format_bytes(row['budget_bytes'])})"
        yield f"{each['name']:<9} {text}"


def _step(document: Mapping[str, Any]) -> Iterator[str]:
    if document["step"] is None:
        return
    lanes = lanes_of(document["step"])
    yield f"step {lanes.step}: {format_seconds(lanes.length_s)}"
    for lane in lanes.lanes:
        if lane.pieces:
            bar = "#" * round(BAR * lane.busy_ratio)
            mark = "  < limit" if lanes.is_limit(lane.engine) else ""
            yield f"  {TITLES[lane.engine]:<18} {lane.busy_ratio:>4.0%} {bar:<{BAR}}{mark}"


def _problems(document: Mapping[str, Any]) -> Iterator[str]:
    steps = document["steps"]
    if document["waits_for"]:
        yield f"WAITING   {document['waits_for']}"
    repeats = sum(row["repeats"] for row in document["links"])
    counts = [f"{steps['flags_count']} faults, restarts or repeated steps"]
    counts += [f"{repeats:,} requests repeated"] if repeats else []
    spilled = sum(each.get("core", {}).get("spilled_count", 0)
                  for each in document["counters"].values())  # fmt: skip
    counts += [f"{spilled:,} sums spilled to disk"] if spilled else []
    yield (
        f"problems  {', '.join(counts)}" if steps["flags_count"] or counts[1:] else "problems  none"
    )
    for flag in steps["flags"][-3:]:
        yield f"          step {flag['step']}: {flag['text']}"


def _counters(document: Mapping[str, Any]) -> Iterator[str]:
    for row in document["links"]:
        yield f"{row['process']:<9} {row['link']}"
        received, sent = format_bytes(row["received_bytes"]), format_bytes(row["sent_bytes"])
        yield f"          {received} in, {sent} out, {row['messages']:,} messages"
    for name, counted in document["counters"].items():
        for key, value in counted.get("core", {}).items():
            shown = format_bytes(value) if "_bytes" in key else f"{value:,}"
            yield f"{name:<9} {key.replace('_', ' '):<28} {shown:>14}"
