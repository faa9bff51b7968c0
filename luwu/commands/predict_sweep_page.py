"""Drawings of `luwu predict sweep`: the plot, and the page with each point as people read it."""

from __future__ import annotations

from typing import Any, Final

from luwu.base.identifiers import words
from luwu.base.quantities import format_seconds
from luwu.predict.ask.answer import cells
from luwu.predict.ask.sweep import STEP, Point, Sweep
from luwu.report.chart import WIDE, Bar, point_chart
from luwu.report.palette import system_colour
from luwu.report.sweep_page import PointView, sweep_html

_PARTS: Final = {True: "Parts of the step", False: "Parts of the time between two tokens"}
"""By whether it is a question of training."""


def sweep_page(found: Sweep, of: str) -> str:
    """A sweep as a page."""
    answers = [point.answer for point in found.points if point.answer is not None]
    asked = answers[0]["asked"]
    return sweep_html(
        title=f"LuWu sweep: {of} of {asked['model']}",
        axes={axis.name: axis.labels for axis in found.axes}, of=of,
        points=[
            _view(point, number)
            for point, number in zip(found.points, found.numbers(of), strict=True)
        ],
        plot=lambda width: sweep_svg(found, of, width),
        parts_name=_PARTS[STEP in answers[0]],
    )  # fmt: skip


def sweep_svg(found: Sweep, of: str, width: int = WIDE) -> str:
    """A sweep as a plot, a part of a page: over the first axis, a curve for each of the others."""
    first = found.axes[0]
    return point_chart(
        found.curves(of), first.labels, x_name=first.name, y_name=of, is_joined=first.is_ordered,
        width=width,
    )  # fmt: skip


def _view(point: Point, number: float | None) -> PointView:
    answer = point.answer
    if answer is None:
        return PointView(number=None, facts={}, bars=[], refused=point.refused)
    facts = cells(answer)
    facts |= {"nearest that fits": answer["nearest_fit"]} if answer.get("nearest_fit") else {}
    facts |= {"warnings": "; ".join(answer["warnings"])} if answer["warnings"] else {}
    return PointView(number=number, facts=facts, bars=_bars(answer))


def _bars(answer: dict[str, Any]) -> list[Bar]:
    colour = system_colour(answer["system"], 0)
    return [
        Bar(words(name), seconds, format_seconds(seconds), colour)
        for name, seconds in answer["parts_s"].items()
        if seconds
    ]
