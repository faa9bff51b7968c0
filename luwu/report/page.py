"""The report of a run as one HTML file that needs nothing else: no network, no script.

Its document is `luwu.monitor.watch`'s.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from luwu.base.quantities import format_bytes, format_seconds
from luwu.report.chart import Bar, StepFlag, bar_chart, line_chart, strip_chart
from luwu.report.lanes_chart import lanes_chart
from luwu.report.palette import STYLE, system_colour
from luwu.report.table import grouped_rows, job_text, notes, spread
from luwu.report.verdict import verdict

_OWNERS: Final = {"worker": "blue", "switch": "orange", "node": "green"}


def report_html(document: Mapping[str, Any]) -> str:
    """The page of a run."""
    templates = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FunctionLoader(_load),
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    comparison, steps = document["comparison"], document["steps"]
    arms = comparison["arms"] if comparison else []
    return templates.get_template("report.html.j2").render(
        title=_title(document),
        style=STYLE + _load("style.css"),
        document=document,
        verdict=verdict(document),
        job_lines=job_text(comparison).splitlines() if comparison else [],
        lanes=None if document["step"] is None else framed(lanes_chart(document["step"])),
        strip=_strip(steps),
        flags=steps["flags"],
        times=times_chart({arm["name"]: arm["step_seconds"] for arm in arms}),
        losses=_losses(document),
        memory=_memory(document["memory"]),
        links=_links(document["links"], steps["median_s"]),
        header=["", *(arm["name"] for arm in arms)],
        groups=grouped_rows(comparison) if comparison else [],
        colours={arm["name"]: system_colour(arm["name"], index) for index, arm in enumerate(arms)},
        notes=notes(comparison) if comparison else [],
        facts=_facts(document),
        source=json.dumps(document, indent=1),
    )


def write_report(path: Path, document: Mapping[str, Any]) -> Path:
    """Write the page of a run, whole or not at all; its path."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(report_html(document), encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def fact_text(name: str, value: object) -> str:
    """A value of the job or the environment for people."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    if isinstance(value, int) and not isinstance(value, bool):
        return format_bytes(value) if name.endswith("_bytes") else f"{value:,}"
    return str(value)


def _load(name: str) -> str:
    return resources.files("luwu.report").joinpath(name).read_text(encoding="utf-8")


def _title(document: Mapping[str, Any]) -> str:
    what = "comparison" if document["comparison"] else "run"
    return f"LuWu {what} {Path(document['run']).name}: {document['state']}"


def framed(chart: str) -> Markup:
    """A chart, which a narrow window moves sideways."""
    return Markup(f'<div class="scroll">{chart}</div>')


def _strip(steps: Mapping[str, Any]) -> Markup | None:
    if not steps["seconds"]:
        return None
    flags = [StepFlag(**flag) for flag in steps["flags"]]
    return framed(strip_chart(steps["seconds"], flags, first=steps["first"]))


def times_chart(seconds: Mapping[str, Sequence[float]]) -> Markup | None:
    """The steps of each arm or run: their median, and where most of them lie."""
    bars = []
    for index, (name, steps_s) in enumerate(seconds.items()):
        if steps_s:
            median, colour = statistics.median(steps_s), system_colour(name, index)
            bars.append(Bar(name, median, format_seconds(median), colour, *spread(steps_s)))
    return framed(bar_chart(bars, name="time per step")) if bars else None


def _losses(document: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """A chart for the loss, and one for each other number of the script."""
    if document["comparison"]:
        curves = {arm["name"]: arm["loss"] for arm in document["comparison"]["arms"]}
        title = "Loss before each update, mean over workers"
        return [(title, framed(line_chart(curves, y_name="loss")))]
    charts = []
    for name, found in sorted(document["scalars"].items(), key=lambda each: each[0] != "loss"):
        if found["values"]:
            chart = line_chart({name: found["values"]}, y_name=name, first=found["steps"][0])
            charts.append((f"{name}, as rank 0 recorded it", framed(chart)))
    return charts


def _memory(rows: list[Mapping[str, Any]]) -> Markup | None:
    if not rows:
        return None
    bars = []
    for row in rows:
        kind = next((kind for kind in _OWNERS if row["name"].startswith(kind)), "node")
        budget = row["budget_bytes"]
        text = format_bytes(row["peak_bytes"])
        if budget is not None:
            text += f" (budget {format_bytes(budget)})"
        # A budget that dwarfs what is used would hide it: then the text alone says it.
        limit = budget if budget is not None and budget < 8 * row["peak_bytes"] else None
        bars.append(
            Bar(row["name"], row["peak_bytes"], text, f"var(--{_OWNERS[kind]})", limit=limit)
        )
    return framed(bar_chart(bars, name="memory, peak"))


def _links(rows: list[Mapping[str, Any]], step_s: float | None) -> Markup | None:
    if not rows:
        return None
    bars = []
    for row in rows:
        text = format_bytes(round(row["bytes_per_step"]))
        rate, most = row["rate_bytes_per_s"], None
        if rate is not None and step_s:
            most = rate * step_s
            text += f" ({row['bytes_per_step'] / most:.0%} of its rate)"
        name = f"{row['process']}: {row['link']}"
        bars.append(Bar(name, row["bytes_per_step"], text, "var(--sky)", limit=most))
    return framed(bar_chart(bars, name="bytes per step and link"))


def _facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of the job and the environment, for people."""
    comparison = document["comparison"]
    found: list[tuple[str, object]] = [("run", document["run"])]
    found += [(name, document["keys"][name]) for name in document["keys_set"]]
    found += [] if comparison else document["environment"].items()
    if comparison:
        found += [*comparison["job"].items(), *comparison["environment"].items()]
    return [
        (name.replace("_", " "), fact_text(name, value))
        for name, value in found
        if value is not None
    ]
