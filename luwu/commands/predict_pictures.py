"""Pictures of `luwu predict`, as files: the timeline of a step, the plot of a sweep."""

from __future__ import annotations

import os
from pathlib import Path

from luwu.base.errors import ConfigError
from luwu.predict.ask.pictures import Picture, colour_index, is_pale, stages_picture, steps_picture
from luwu.predict.ask.question import AnyQuestion, Question
from luwu.predict.ask.replay import PLAYED, play_three_d
from luwu.predict.driven.driven import play_driven_steps
from luwu.report.chart import Bar, as_file, span_chart


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
        return shown, f"{steps}, {played.step_s:.3f} s each without straggling"
    record, stages = play_three_d(question).record, question.job.pipeline
    shown = stages_picture(record, stages)
    return shown, f"a step of {stages} stages, {record.end_s:.3f} s without straggling"


def timeline_svg(shown: Picture, *, name: str) -> str:
    """A picture of a record, a part of a page."""
    rows = [
        (
            f"{row.title} {row.busy_ratio:4.0%}",
            [
                Bar(
                    span.start_s, span.end_s,
                    f"{span.engine}: {span.job}, {(span.end_s - span.start_s) * 1e3:,.1f} ms",
                    colour_index(span), is_pale(span),
                )
                for span in row.spans
            ],
        )
        for row in shown.rows
    ]  # fmt: skip
    return span_chart(
        rows, start=shown.start_s, end=shown.end_s, name=name, x_name="seconds",
        marks=shown.marks_s,
    )  # fmt: skip


def write_svg(path: Path, svg: str) -> None:
    """Whole, or not at all. Raises ConfigError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(as_file(svg), encoding="utf-8")
        os.replace(partial, path)
    except OSError as exc:
        raise ConfigError(f"svg: cannot write {path}: {exc.strerror}") from exc
    finally:
        partial.unlink(missing_ok=True)
