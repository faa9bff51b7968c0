"""Two runs side by side: their steps over each other, their curves in one chart, their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from luwu.base.quantities import format_bytes, format_seconds
from luwu.report.chart import line_chart
from luwu.report.lanes import TITLES, lanes_of
from luwu.report.lanes_chart import lanes_chart
from luwu.report.page import both, environment, style_sheet, times_chart
from luwu.report.table import line_of, spread, widths_of
from luwu.report.verdict import verdict

PAGE = "pair.html.j2"
Documents = Mapping[str, Mapping[str, Any]]
"""Two documents of runs (`luwu.monitor.watch`), by what the runs are called."""


def named(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The documents by the names of their directories, or by their order where these are equal."""
    names = [Path(each["run"]).name for each in (first, second)]
    if names[0] == names[1]:
        names = ["first", "second"]
    return dict(zip(names, (first, second), strict=True))


def pair_html(documents: Documents) -> str:
    """The page of two runs."""
    return environment().get_template(PAGE).render(
        title=f"LuWu runs {' and '.join(documents)}",
        style=style_sheet(),
        verdicts={name: verdict(each) for name, each in documents.items()},
        lanes=_lanes(documents),
        times=times_chart({name: each["steps"]["seconds"] for name, each in documents.items()}),
        losses=_losses(documents),
        header=["", *documents],
        rows=pair_rows(documents),
    )  # fmt: skip


def pair_text(documents: Documents) -> str:
    """The same numbers for a terminal."""
    table = [["", *documents], *pair_rows(documents)]
    widths = widths_of(table)
    return "\n".join(line_of(row, widths) for row in table)


def pair_rows(documents: Documents) -> list[list[str]]:
    """A row for each number, with what differs in their keys at the end; numbers that neither run
    has are left out."""
    found: dict[str, list[str]] = {}
    for index, document in enumerate(documents.values()):
        for name, value in _numbers(document).items():
            found.setdefault(name, ["-", "-"])[index] = value
    first, second = (each["keys"] for each in documents.values())
    for name in sorted({*first, *second}):
        values = [first.get(name), second.get(name)]
        if values[0] != values[1] and name != "run_dir":
            found[f"key {name}"] = [str(value) for value in values]
    return [[name, *values] for name, values in found.items()]


def _numbers(document: Mapping[str, Any]) -> dict[str, str]:
    steps = document["steps"]
    found = {"state": document["state"], "decided steps": f"{steps['done']:,}"}
    if steps["median_s"] is not None:
        low, high = spread(steps["seconds"])
        found["step time, median"] = format_seconds(steps["median_s"])
        found["step time, 10 % to 90 %"] = f"{format_seconds(low)} to {format_seconds(high)}"
    if document["step"] is not None:
        lanes = lanes_of(document["step"])
        found["limit of a typical step"] = TITLES.get(lanes.limit, lanes.limit)
        for lane in lanes.lanes:
            found[f"{TITLES[lane.engine]}, busy"] = f"{lane.busy_ratio:.0%}"
    for name, values in document["scalars"].items():
        if values["values"]:
            found[f"{name}, last"] = f"{values['values'][-1]:.6g}"
    for row in document["memory"]:
        found[f"{row['name']} memory, peak"] = format_bytes(row["peak_bytes"])
    for row in document["links"]:
        name = f"{row['process']} to {row['link']}, bytes per step"
        found[name] = format_bytes(round(row["bytes_per_step"]))
    if steps["flags_count"]:
        found["faults, restarts, repeated steps"] = str(steps["flags_count"])
    return found


def _lanes(documents: Documents) -> Markup | None:
    steps = {name: lanes_of(each["step"]) for name, each in documents.items() if each["step"]}
    return both(lambda width: lanes_chart(steps, width=width)) if steps else None


def _losses(documents: Documents) -> Markup | None:
    losses = {name: each["scalars"].get("loss") for name, each in documents.items()}
    curves = {name: found["values"] for name, found in losses.items() if found}
    if not curves:
        return None
    first = min(found["steps"][0] for found in losses.values() if found)
    return both(lambda width: line_chart(curves, y_name="loss", first=first, width=width))
