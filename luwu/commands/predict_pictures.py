"""Pictures of `luwu predict`, as files: the timeline of a step, the plot of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.predict.ask.pictures import Picture, is_pale, stages_picture, steps_picture
from luwu.predict.ask.question import AnyQuestion, Question
from luwu.predict.ask.replay import PLAYED, play_three_d
from luwu.predict.driven.driven import play_driven_steps
from luwu.report.chart import as_file
from luwu.report.lanes import Piece
from luwu.report.lanes_chart import Row, rows_chart
from luwu.report.page import write_page
from luwu.report.palette import engine_colour

_ENGINES: Final = {
    "compute": ("compute", "compute"), "down": ("pull", "pull"), "up": ("push", "push"),
    "disk read": ("disk read", "read"), "node memory": ("node memory", "update"),
    "disk write": ("disk write", "write"),
}  # fmt: skip
"""Engines of a played step: what people call them, and whose colour they have."""


def step_timeline(question: AnyQuestion, path: Path) -> str:
    """Draw the steps of a question as they are played; the line to print. Raises ConfigError."""
    if not isinstance(question, Question) or question.system not in PLAYED:
        raise ConfigError(
            f"svg: the event core plays steps of {' and '.join(PLAYED)}, and this is "
            f"{question.system}; leave it out"
        )
    shown, said = _steps(question)
    write_svg(path, timeline_svg(shown, name=f"steps of {question.job.model.name}"))
    return f"timeline          {path}: {said}"


def _steps(question: Question) -> tuple[Picture, str]:
    """A picture, and what it shows."""
    on = question.as_on_topology()
    if on.nodes is not None:
        played = play_driven_steps(on.job, on.nodes)
        shown = steps_picture(played)
        steps = f"{len(shown.marks_s)} steps as the cores decide them"
        return shown, f"{steps}, {played.step_s:.3f} s each"
    record, stages = play_three_d(question).record, question.job.pipeline
    shown = stages_picture(record, stages)
    return shown, f"a step of {stages} stages, {record.end_s:.3f} s without straggling"


def timeline_svg(shown: Picture, *, name: str) -> str:
    """A picture of a record, a part of a page: as that of a step that was measured."""
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
    length_s = shown.end_s - shown.start_s
    marks_s = {text: at - shown.start_s for text, at in shown.marks_s.items()}
    return rows_chart(rows, length_s, name=name, title=name, marks_s=marks_s)


def write_svg(path: Path, svg: str) -> None:
    """Whole, or not at all. Raises ConfigError."""
    try:
        write_page(path, as_file(svg))
    except OSError as exc:
        raise ConfigError(f"svg: cannot write {path}: {exc.strerror}") from exc
