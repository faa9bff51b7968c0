"""`luwu predict sweep`: a question over values of its keys: a table, or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from luwu.base.identifiers import words
from luwu.commands import form
from luwu.commands.predict_question import CATALOGUE, FILE, Command, asked_table
from luwu.predict.ask.keys import assumed_text
from luwu.predict.ask.sweep import STEP, Axis, Point, Sweep, label, parse_axis, sweep
from luwu.predict.hardware.catalogue import Catalogue

SCHEMA: Final = 4
"""4: answers have schema 4, and there is no `no_effect`."""
_ALWAYS: Final = {
    "step_s": "{:.3f} s",
    "tokens_per_s_per_device": "{:,.0f}",
    "mfu": "{:.1%}",
}
_HEADINGS: Final = {"step_s": "step", "tokens_per_s_per_device": "tokens/s each", "mfu": "MFU"}


@click.command(
    "sweep",
    cls=Command,
    examples=("luwu predict sweep llama.toml --over node.disks=2,4,8 --over devices=8,16",),
)
@FILE
@click.option(
    "--over",
    type=form.Value("KEY=V,V", lambda text, _: parse_axis(text)),
    multiple=True,
    help="a key and its values; repeatable",
)
@click.option(
    "--of",
    type=form.Value("METRIC"),
    default=STEP,
    help="number of the answer to show (default: step_s)",
)
@form.JSON
@CATALOGUE
def run_sweep(
    asked: Mapping[str, str], file: Path | None, over: Sequence[Axis], of: str,
    as_json: bool, catalogue: Catalogue,
) -> int:  # fmt: skip
    """Predict a step for each value of one or more keys of a question, as a table. The question
    is in FILE, or in flags, as of luwu predict step."""
    table, assumed = asked_table(asked, file, catalogue)
    found = sweep(table, over, catalogue)
    numbers = found.numbers(of)
    if as_json:
        print(json.dumps(document(found, of) | {"assumed": assumed}, indent=1))
    else:
        print("\n".join([*assumed_text(assumed), text(found, of, numbers)]))
    return 0


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
