"""Charts as SVG: curves over steps, bars beside a limit, and times of all steps with flags. No
script, no outside file.

They are parts of a page, which defines their colours (`luwu.report.palette`), and are never scaled
down, as their text cannot be read then: a narrow window moves them sideways.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

from luwu.report.palette import dash, system_colour

WIDTH: Final = 860
HEIGHT: Final = 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 16, 42
ACROSS: Final = WIDTH - LEFT - RIGHT
TICKS: Final = 8
"""Numbers along an axis, about."""
LETTER: Final = 7
"""Width of a letter in pixels, about."""
DIGIT: Final = 8
"""Width of a digit, the widest character of which names have many."""
ROW: Final = 34
"""Pixels from one bar to the next."""
COINCIDE_RATIO: Final = 0.004
"""Curves nearer than this share of the chart's height are one line to the eye."""
COLUMNS_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class Together:
    """Curves that coincide, drawn as one."""

    names: tuple[str, ...]
    index: int
    """Index of the first of them."""
    values: Sequence[float]
    largest_difference: float

    @property
    def text(self) -> str:
        """Their names; for several, how near they are."""
        if len(self.names) == 1:
            return self.names[0]
        near = "equal" if self.largest_difference == 0 else f"within {self.largest_difference:.1g}"
        return f"{' = '.join(self.names)} ({near})"


def together(curves: Mapping[str, Sequence[float]]) -> list[Together]:
    """Curves in their order, those that coincide with an earlier one joined to it."""
    finite = _finite(curves)
    near = COINCIDE_RATIO * (max(finite) - min(finite)) if finite else 0.0
    found: list[Together] = []
    for index, (name, values) in enumerate(curves.items()):
        for place, other in enumerate(found):
            distance = _distance(other.values, values)
            if distance is not None and distance <= near:
                names = (*other.names, name)
                largest = max(distance, other.largest_difference)
                found[place] = Together(names, other.index, other.values, largest)
                break
        else:
            found.append(Together((name,), index, values, 0.0))
    return found


def line_chart(curves: Mapping[str, Sequence[float]], *, y_name: str, first: int = 0) -> str:
    """Curves over steps, counted from `first`; values that are not finite leave a gap."""
    finite = _finite(curves)
    if not finite:
        return _nothing(y_name)
    low, high, parts = _grid(min(finite), max(finite))
    last = max(1, max(len(curve) for curve in curves.values()) - 1)

    def at(index: int, value: float) -> tuple[float, float]:
        x = LEFT + ACROSS * index / last
        return x, _y(value, low, high)

    parts += _step_ticks(first, last, lambda step: at(step - first, low)[0])
    groups = together(curves)
    for number, group in enumerate(groups):
        colour = system_colour(group.names[0], group.index)
        points = [at(i, v) if math.isfinite(v) else None for i, v in enumerate(group.values)]
        parts.append(
            f'<path d="{_path(points)}" fill="none" stroke="{colour}" stroke-width="2"'
            f"{_dashes(number)}><title>{escape(group.text)}</title></path>"
        )
        y = TOP + 14 + 20 * number
        x = WIDTH - RIGHT - LETTER * max(len(each.text) for each in groups) - 34
        parts.append(_key(max(x, LEFT + 8), y, group.text, colour, number))
    parts.append(text((LEFT + WIDTH) / 2, HEIGHT - 6, "step", anchor="middle"))
    return _svg(parts, y_name)


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar chart."""

    name: str
    value: float
    text: str
    """The value, for people."""
    colour: str
    low: float | None = None
    high: float | None = None
    """Ends of the whisker."""
    limit: float | None = None
    """Position of a line across the bar."""


def bar_chart(bars: Sequence[Bar], *, name: str) -> str:
    """Horizontal bars from zero, each with its value beside it."""
    ends = [end for bar in bars for end in (bar.value, bar.high, bar.limit) if end is not None]
    longest = max([*ends, 1e-12])
    left = 12 + DIGIT * max((len(bar.name) for bar in bars), default=0)
    left = min(left, int(WIDTH * 0.45))
    right = 12 + DIGIT * max((len(bar.text) for bar in bars), default=0)
    per_unit = (WIDTH - left - right) / longest
    parts = []
    for number, bar in enumerate(bars):
        top, end = 4 + ROW * number, left + per_unit * bar.value
        middle = top + ROW / 2
        parts.append(text(left - 8, middle + 4, bar.name, anchor="end"))
        parts.append(
            f'<rect x="{left}" y="{top + 6}" width="{end - left:.1f}" height="{ROW - 12}" '
            f'fill="{bar.colour}"><title>{escape(f"{bar.name}: {bar.text}")}</title></rect>'
        )
        if bar.low is not None and bar.high is not None:
            low, high = left + per_unit * bar.low, left + per_unit * bar.high
            caps = "".join(f"M{x:.1f} {middle - 5}v10" for x in (low, high))
            parts.append(_line(f"M{low:.1f} {middle}H{high:.1f}{caps}", "var(--ink)", 1.5))
            end = max(end, high)
        if bar.limit is not None:
            x = left + per_unit * bar.limit
            parts.append(_line(f"M{x:.1f} {top + 2}v{ROW - 4}", "var(--ink)", 2))
            end = max(end, x)
        parts.append(text(end + 6, middle + 4, bar.text))
    return whole(parts, name, 8 + ROW * len(bars))


@dataclass(frozen=True, slots=True)
class StepFlag:
    """Something that happened at a step: a fault, a restart, a step made again."""

    step: int
    text: str


def strip_chart(seconds: Sequence[float], flags: Sequence[StepFlag] = (), *, first: int = 0) -> str:
    """Times of all steps: a column each, or one for some that are together, as high as their
    median with a line up to their longest. Flags are numbered triangles above their step."""
    if not seconds:
        return _nothing("seconds per step")
    each = math.ceil(len(seconds) / COLUMNS_MAX)
    groups = [seconds[start : start + each] for start in range(0, len(seconds), each)]
    medians = [statistics.median(group) for group in groups]
    low, high, parts = _grid(0.0, _most(seconds))
    column = ACROSS * each / len(seconds)

    def x_of(step: float) -> float:
        return LEFT + ACROSS * (step - first) / len(seconds)

    for number, (group, median) in enumerate(zip(groups, medians, strict=True)):
        x, start = LEFT + column * number, first + number * each
        steps = f"step {start}" if each == 1 else f"steps {start} to {start + len(group) - 1}"
        top, most = (_y(min(each_s, high), low, high) for each_s in (median, max(group)))
        parts.append(
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{max(0.6, column - 0.6):.1f}" '
            f'height="{HEIGHT - BOTTOM - top:.1f}" fill="var(--blue)">'
            f"<title>{steps}: {median:.4g} s</title></rect>"
        )
        if each > 1:
            parts.append(_line(f"M{x + column / 2:.1f} {top:.1f}V{most:.1f}", "var(--blue)", 0.8))
        if median > high:  # cut off, so that the others can be told apart
            parts.append(text(x + column + 3, TOP + 12, f"{median:.2g} s"))
    for number, flag in enumerate(flags, start=1):
        x = min(max(x_of(flag.step + 0.5), LEFT), WIDTH - RIGHT)
        parts.append(_line(f"M{x:.1f} {TOP}V{HEIGHT - BOTTOM}", "var(--vermilion)", 1, "3 3"))
        parts.append(
            f'<path d="M{x - 5:.1f} {TOP - 8}h10l-5 8z" fill="var(--vermilion)" '
            f'stroke="var(--ink)" stroke-width="0.6"><title>{escape(flag.text)}</title></path>'
        )
        parts.append(text(x + 7, TOP, str(number)))
    parts += _step_ticks(first, len(seconds) - 1, x_of)
    parts.append(text((LEFT + WIDTH) / 2, HEIGHT - 6, "step", anchor="middle"))
    return _svg(parts, "seconds per step")


def whole(parts: Sequence[str], name: str, height: float) -> str:
    """A drawing of these parts; its name is read out to those who do not see it."""
    label = escape(name, quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )


def text(x: float, y: float, said: str, *, anchor: str = "start", is_bold: bool = False) -> str:
    """A text of a drawing."""
    bold = ' font-weight="bold"' if is_bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="var(--ink)"{bold}>'
        f"{escape(said)}</text>"
    )


def nice_ticks(low: float, high: float, *, count: int = 6) -> list[float]:
    """Round numbers that cover the range, about `count` of them."""
    if high <= low:
        high = low + (abs(low) or 1.0) * 0.1
    rough = (high - low) / max(1, count - 1)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _most(seconds: Sequence[float]) -> float:
    """The top of a chart of times: the longest, unless it dwarfs all others, as the first may."""
    ordered = sorted(seconds)
    usual = ordered[int(0.98 * (len(ordered) - 1))]
    return ordered[-1] if ordered[-1] < 3 * usual else 1.5 * usual


def _finite(curves: Mapping[str, Sequence[float]]) -> list[float]:
    return [value for curve in curves.values() for value in curve if math.isfinite(value)]


def _distance(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The largest difference; None for curves that are not finite at the same steps."""
    if len(one) != len(other):
        return None
    found = 0.0
    for mine, theirs in zip(one, other, strict=True):
        if math.isfinite(mine) != math.isfinite(theirs):
            return None
        found = max(found, abs(mine - theirs)) if math.isfinite(mine) else found
    return found


def _grid(low: float, high: float) -> tuple[float, float, list[str]]:
    """The ends of the vertical axis, and lines at round numbers between them."""
    ticks = nice_ticks(low, high)
    parts = []
    for tick in ticks:
        y = _y(tick, ticks[0], ticks[-1])
        parts.append(_line(f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", "var(--line)", 1))
        parts.append(text(LEFT - 6, y + 4, f"{tick:g}", anchor="end"))
    return ticks[0], ticks[-1], parts


def _y(value: float, low: float, high: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low))


def _step_ticks(first: int, count: int, x_of: Callable[[int], float]) -> list[str]:
    """Numbers of steps under a chart."""
    ticks = nice_ticks(first, first + count, count=TICKS)
    steps = [int(tick) for tick in ticks if tick == int(tick) and first <= tick <= first + count]
    return [text(x_of(step), HEIGHT - BOTTOM + 18, f"{step}", anchor="middle") for step in steps]


def _key(x: float, y: float, said: str, colour: str, index: int) -> str:
    """An entry of a legend."""
    return f'<path d="M{x} {y - 4}h24" stroke="{colour}" stroke-width="2"{_dashes(index)}/>' + text(
        x + 30, y, said
    )


def _line(path: str, colour: str, width: float, dashes: str = "") -> str:
    pattern = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{pattern}/>'


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """Lines between neighbours; a point alone is a short line, so that it is seen."""
    parts = []
    for before, point in pairwise([None, *points]):
        if point is not None:
            parts.append(f"{'M' if before is None else 'L'}{point[0]:.1f} {point[1]:.1f}")
    return "".join([*parts, "h.1"]) if parts else ""


def _dashes(index: int) -> str:
    return f' stroke-dasharray="{dash(index)}"' if dash(index) else ""


def _nothing(name: str) -> str:
    return _svg([text(WIDTH / 2, HEIGHT / 2, "nothing was measured", anchor="middle")], name)


def _svg(parts: Sequence[str], name: str) -> str:
    """With the name of its vertical axis."""
    middle = (TOP + HEIGHT - BOTTOM) / 2
    axis = (
        f'<text transform="translate(13 {middle:.0f}) rotate(-90)" text-anchor="middle" '
        f'fill="var(--ink)">{escape(name)}</text>'
    )
    return whole([axis, *parts], name, HEIGHT)
