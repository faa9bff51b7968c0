"""`luwu predict sweep`: a question over values of its keys: a table, JSON, a plot, a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from luwu.base.identifiers import words
from luwu.commands.flags import CATALOGUE_FLAG, JSON_FLAG, Flag, Parsed, Verb
from luwu.commands.predict_pictures import write_drawn
from luwu.commands.predict_question import QUESTION_FLAGS, asked_table
from luwu.commands.predict_sweep_page import sweep_page, sweep_svg
from luwu.predict.ask.one_line import assumed_text
from luwu.predict.ask.sweep import STEP, Point, Sweep, label, parse_axis, sweep
from luwu.predict.hardware.catalogue import Catalogue
from luwu.report.chart import as_file

SWEEP: Final = Verb(
    name="predict sweep",
    usage="luwu predict sweep [FILE] [--KEY VALUE ...] --over KEY=V,V,... [--over ...] "
    "[--of METRIC] [--json] [--svg FILE] [--html FILE] [--catalogue FILE]",
    text="Predict a step for each value of one or more keys of a question: a table, with --svg a "
    "plot, with --html a page with sliders over the values, which needs nothing else. The question "
    "is in FILE, or in flags, as of luwu predict step.",
    examples=(
        "luwu predict sweep llama.toml --over node.disks=2,4,8 --svg disks.svg",
        "luwu predict sweep llama.toml --over devices=8,16,32 --html devices.html",
    ),
    flags=(
        Flag(name="over", shape="KEY=V,V", text="a key and its values; repeatable", repeats=True),
        Flag(name="of", shape="METRIC", text="number of the answer to show (default: step_s)"),
        Flag(name="svg", shape="FILE", text="write a plot"),
        Flag(name="html", shape="FILE", text="write a page with sliders over all points"),
        JSON_FLAG,
        CATALOGUE_FLAG,
        *QUESTION_FLAGS,
    ),
    has_keys=False,
    rest="many",
)
SCHEMA: Final = 2
"""2: the swept number of a point is its `number`; answers have schema 2."""
_ALWAYS: Final = {
    "step_s": "{:.3f} s",
    "tokens_per_s_per_device": "{:,.0f}",
    "mfu": "{:.1%}",
}
_HEADINGS: Final = {"step_s": "step", "tokens_per_s_per_device": "tokens/s each", "mfu": "MFU"}


def run_sweep(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue) -> str:
    """The output of the command. Raises ConfigError."""
    table, assumed = asked_table(parsed, catalogue)
    axes = [parse_axis(each) for each in parsed.repeated.get("over", [])]
    found = sweep(table, axes, catalogue)
    of = parsed.flags.get("of", STEP)
    numbers = found.numbers(of)
    if "svg" in parsed.flags:
        write_drawn("svg", Path(parsed.flags["svg"]), as_file(sweep_svg(found, of)))
    if "html" in parsed.flags:
        write_drawn("html", Path(parsed.flags["html"]), sweep_page(found, of))
    return (
        json.dumps(document(found, of) | {"assumed": assumed}, indent=1)
        if parsed.has("json")
        else "\n".join([*assumed_text(assumed), text(found, of, numbers)])
    )


def document(found: Sweep, of: str) -> dict[str, Any]:
    """A sweep for programs; each answer is that of `luwu predict step`."""
    return {
        "schema": SCHEMA,
        "over": {axis.name: axis.labels for axis in found.axes},
        "of": of,
        "points": [
            {
                "values": {
                    key: value
                    for axis, chosen in zip(found.axes, point.values, strict=True)
                    for key, value in zip(axis.keys, chosen, strict=True)
                },
                "number": number,
                "answer": point.answer,
                "refused": point.refused or None,
            }
            for point, number in zip(found.points, found.numbers(of), strict=True)
        ],
        "no_effect": found.without_effect(of),
    }


def text(found: Sweep, of: str, numbers: Sequence[float | None]) -> str:
    """A sweep for people: a row for each point."""
    shown = [] if of in _ALWAYS else [of]
    rows = [[*(axis.name for axis in found.axes), *_HEADINGS.values(), *shown, "bottleneck"]]
    for point, number in zip(found.points, numbers, strict=True):
        cells = [label(value) for value in point.values]
        if point.answer is None:
            rows.append([*cells, f"rejected: {point.refused}"])
            continue
        cells += [_cell(point, key, form) for key, form in _ALWAYS.items()]
        cells += ["-" if number is None else f"{number:.6g}" for _ in shown]
        warned = f"; {len(point.answer['warnings'])} warning(s)" if point.answer["warnings"] else ""
        rows.append([*cells, f"{words(point.answer.get('binding', '-'))}{warned}"])
    columns = len(rows[0]) - 1
    whole = [row for row in rows if len(row) == columns + 1]
    widths = [max(len(row[index]) for row in whole) for index in range(columns)]
    for row in rows:
        for index, width in enumerate(widths[: len(found.axes)]):
            widths[index] = max(width, len(row[index]))
    lines = [
        "  ".join([*(f"{c:>{w}}" for c, w in zip(row[:-1], widths, strict=False)), row[-1]])
        for row in rows
    ]
    nothing = found.without_effect(of)
    lines += [f"without effect on {of}: {', '.join(nothing)}"] if nothing else []
    said = list(dict.fromkeys(each for point in found.points for each in _warnings(point)))
    return "\n".join(lines + [f"warning: {each}" for each in said])


def _cell(point: Point, key: str, form: str) -> str:
    value = None if point.answer is None else point.answer.get(key)
    return "-" if value is None else form.format(value)


def _warnings(point: Point) -> list[str]:
    """With the values that they are of."""
    if point.answer is None:
        return []
    where = ", ".join(label(value) for value in point.values)
    return [f"{where}: {each}" for each in point.answer["warnings"]]
