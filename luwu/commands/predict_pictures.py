"""Pictures of `luwu predict`, as files: the timeline of a step, the plot of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.predict.ask.pictures import (
    STEPS_SHOWN,
    Picture,
    is_pale,
    stages_picture,
    steps_picture,
    units_picture,
)
from luwu.predict.ask.question import AnyQuestion, Question
from luwu.predict.ask.replay import agreement, play_three_d, play_units
from luwu.predict.driven.driven import play_driven_steps
from luwu.report.chart import as_file
from luwu.report.lanes import Piece
from luwu.report.lanes_chart import Row, rows_chart
from luwu.report.page import write_page
from luwu.report.palette import engine_colour

_ENGINES: Final = {
    "compute": ("compute", "compute"), "down": ("pull", "pull"), "up": ("push", "push"),
    "disk read": ("disk read", "read"), "node memory": ("node memory", "update"),
    "disk write": ("disk write", "write"), "port in": ("port in", "pull"),
    "port out": ("port out", "push"), "PCIe": ("PCIe", "sum"), "host": ("host", "update"),
}  # fmt: skip
"""Engines of a played step: what people call them, and whose colour they have."""


def step_timeline(question: AnyQuestion, path: Path) -> str:
    """Draw the steps of a question as they are played; the line to print. Raises ConfigError."""
    shown, said = _steps(_of_training(question))
    svg = timeline_svg(shown, name=f"{question.system}: steps of {question.job.model.name}")
    write_drawn("svg", path, as_file(svg))
    return f"timeline          {path}: {said}"


def compare_timeline(questions: Mapping[str, AnyQuestion], path: Path) -> str:
    """Draw a step of each question over one axis of time; the lines to print. Raises
    ConfigError."""
    rows, lines, length_s = list[Row](), list[str](), 0.0
    for name, question in questions.items():
        shown, said = _steps(_of_training(question), steps=1)
        rows += [Row(f"{question.system}:", (), ""), *_rows(shown)]
        lines.append(f"timeline  {path}: {name}, {said}")
        length_s = max(length_s, shown.end_s - shown.start_s)
    title = f"a step of {', '.join(each.system for each in questions.values())}"
    svg = rows_chart(rows, length_s, name=title, title=title)
    write_drawn("svg", path, as_file(svg))
    return "\n".join(lines)


def _of_training(question: AnyQuestion) -> Question:
    if not isinstance(question, Question):
        raise ConfigError(f"svg: steps of training are drawn, not {question.system}; leave it out")
    return question


def _steps(question: Question, steps: int = STEPS_SHOWN) -> tuple[Picture, str]:
    """A picture, and what it shows; so many steps of LuWu, where they run into each other."""
    on = question.as_on_topology()
    if on.nodes is not None:
        driven = play_driven_steps(on.job, on.nodes)
        shown = steps_picture(driven, steps)
        count = f"{steps} steps as the cores decide them" if steps > 1 else "a step"
        said = f"{count}, {driven.step_s:.3f} s{' each' * (steps > 1)}"
        return shown, said + agreement(driven.step_s, on.answer().seconds)
    if question.system != "3d":
        record = play_units(question)
        said = f"a step unit by unit, {record.end_s:.3f} s"
        return units_picture(record), said + agreement(record.end_s, on.answer().seconds)
    played, stages = play_three_d(question), question.job.pipeline
    record = played.record
    said = f"a step of {stages} stages, {record.end_s:.3f} s without straggling"
    return stages_picture(record, stages), said + agreement(record.end_s, played.closed_s)


def timeline_svg(shown: Picture, *, name: str) -> str:
    """A picture of a record, a part of a page: as that of a step that was measured."""
    length_s = shown.end_s - shown.start_s
    marks_s = {text: at - shown.start_s for text, at in shown.marks_s.items()}
    return rows_chart(_rows(shown), length_s, name=name, title=name, marks_s=marks_s)


def _rows(shown: Picture) -> list[Row]:
    """Rows of a picture, from its beginning."""
    rows = []
    for row in shown.rows:
        pieces = tuple(
            Piece(
                max(span.start_s, shown.start_s) - shown.start_s,
                min(span.end_s, shown.end_s) - shown.start_s,
                is_pale(span),
            )
            for span in row.spans
        )
        engine, _, number = row.title.rpartition(" ")  # of several lanes of an engine
        title, colour = row.title, "compute"
        if row.title in _ENGINES:
            title, colour = _ENGINES[row.title]
        elif engine in _ENGINES:
            title, colour = f"{_ENGINES[engine][0]} {number}", _ENGINES[engine][1]
        rows.append(Row(title, ((pieces, row.busy_ratio),), engine_colour(colour)))
    return rows


def write_drawn(flag: str, path: Path, text: str) -> None:
    """Write what a flag asked for, whole or not at all. Raises ConfigError."""
    try:
        write_page(path, text)
    except OSError as exc:
        raise ConfigError(f"{flag}: cannot write {path}: {exc.strerror}") from exc
