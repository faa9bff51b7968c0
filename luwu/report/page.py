"""A comparison as one HTML file that needs nothing else: no network, no script."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from luwu.base.quantities import format_bytes
from luwu.report.chart import bar_chart, colour, line_chart
from luwu.report.host_links import link_rows
from luwu.report.table import job_text, notes, plan_tables, spread, table_rows

TEMPLATE = "report.html.j2"


def report_html(document: dict[str, Any]) -> str:
    """The page for a comparison's document."""
    arms = document["arms"]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(
        resources.files("luwu.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    )
    losses = {arm["name"]: arm["loss"] for arm in arms}
    times = {
        arm["name"]: (arm["step_seconds_median"], *spread(arm["step_seconds"])) for arm in arms
    }
    facts = [*document["job"].items(), *document["environment"].items()]
    header, *rows = table_rows(document)
    return template.render(
        job_lines=job_text(document).splitlines(),
        header=header,
        rows=rows,
        colours={arm["name"]: colour(index) for index, arm in enumerate(arms)},
        loss_chart=Markup(line_chart(losses, x_name="step", y_name="loss")),
        time_chart=Markup(bar_chart(times, y_name="seconds a step")),
        notes=notes(document),
        plan_tables=plan_tables(document),
        link_rows=link_rows(document),
        facts=[(name, fact_text(name, value)) for name, value in facts],
        source=json.dumps(document, indent=1),
    )


def fact_text(name: str, value: object) -> str:
    """A value of the job or the environment for people."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    if isinstance(value, int) and not isinstance(value, bool):
        return format_bytes(value) if name.endswith("_bytes") else f"{value:,}"
    return str(value)


def write_report(path: Path, document: dict[str, Any]) -> Path:
    """Write the page, whole or not at all; its path."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(report_html(document), encoding="utf-8")
    os.replace(partial, path)
    return path
