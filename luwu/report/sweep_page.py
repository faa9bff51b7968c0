"""A sweep as one HTML file that needs nothing else: sliders over its points, each computed before.

Every point is in the page; the sliders choose the one that is shown, and its marks in the plot.
Without scripts the first one is shown, and the table of all points.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from luwu.report.chart import Bar, bar_chart
from luwu.report.page import both, environment, style_sheet

PAGE: Final = "sweep.html.j2"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointView:
    """A point for people."""

    number: float | None
    """The number that is plotted; None: there is none."""
    facts: Mapping[str, str]
    bars: Sequence[Bar]
    """Parts of the time."""
    refused: str = ""
    """Why it has no answer."""


def sweep_html(
    *, title: str, axes: Mapping[str, Sequence[str]], of: str, points: Sequence[PointView],
    plot: Callable[[int], str], parts_name: str,
) -> str:  # fmt: skip
    """The page. `axes`: labels of the values of each key; `points`: of all combinations, the last
    key fastest; `plot`: the plot of a width, a circle for each number, curve by curve."""
    counts = [len(labels) for labels in axes.values()]
    strides = [math.prod(counts[place + 1 :]) for place in range(len(counts))]
    shown = next((at for at, point in enumerate(points) if not point.refused), 0)
    values = [shown // stride % count for stride, count in zip(strides, counts, strict=True)]
    return environment().get_template(PAGE).render(
        title=title, style=style_sheet(), of=of, parts_name=parts_name, plot=both(plot),
        sliders=[
            {
                "name": name, "labels": list(labels), "stride": stride, "value": value,
                "data": json.dumps(list(labels)),
            }
            for (name, labels), stride, value in zip(axes.items(), strides, values, strict=True)
        ],
        shown=shown, circles=_circles(points, counts), points=points,
        charts=[_parts_chart(point, parts_name) for point in points],
        rows=[
            [labels[at // stride % len(labels)]
             for labels, stride in zip(axes.values(), strides, strict=True)]
            for at in range(len(points))
        ],
    )  # fmt: skip


def _circles(points: Sequence[PointView], counts: Sequence[int]) -> list[int]:
    """The number of each point's circle in the plot; -1: it has none. Points are ordered by the
    first key, circles by curves."""
    curves = math.prod(counts[1:])
    order = sorted(range(len(points)), key=lambda at: (at % curves, at // curves))
    found = [-1] * len(points)
    drawn = (at for at in order if math.isfinite(_number(points[at])))
    for circle, at in enumerate(drawn):
        found[at] = circle
    return found


def _number(point: PointView) -> float:
    return math.nan if point.number is None else point.number


def _parts_chart(point: PointView, name: str) -> Markup | None:
    if not point.bars:
        return None
    return both(lambda width: bar_chart(point.bars, name=name, width=width))
