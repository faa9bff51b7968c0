"""Charts as SVG: lines over steps, bars with their spread, curves over chosen values,
and spans of time in rows. No script, no outside file.

They are parts of a page; `as_file` makes one a file of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

COLOURS: Final = (
    "#1f5fa8", "#c4572e", "#3c8d4f", "#7a4fa3", "#b08a1e", "#2a9aa3", "#a8457f", "#5c6b73",
)  # fmt: skip
WIDTH: Final = 860
HEIGHT: Final = 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 40
ROW: Final = 24
"""Pixels from one row of spans to the next."""
ROW_LEFT: Final = 130
LETTER: Final = 7
"""Pixels of one, about."""


def colour(index: int) -> str:
    """The colour of the index-th arm, the same in every chart."""
    return COLOURS[index % len(COLOURS)]


def line_chart(curves: Mapping[str, Sequence[float]], *, x_name: str, y_name: str) -> str:
    """Curves over steps, the first one widest; values that are not finite leave a gap."""
    finite = [value for curve in curves.values() for value in curve if math.isfinite(value)]
    if not finite:
        return _svg([_text(WIDTH / 2, HEIGHT / 2, "nothing was measured", anchor="middle")], y_name)
    ticks = nice_ticks(min(finite), max(finite))
    low, high = ticks[0], ticks[-1]
    steps_max = max(len(curve) for curve in curves.values())

    def at(index: int, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * index / max(1, steps_max - 1)
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low))
        return x, y

    parts = _grid(ticks, low, high)
    for tick in nice_ticks(0, max(1, steps_max - 1)):
        if tick == int(tick) and tick <= steps_max - 1:
            x, _ = at(int(tick), low)
            parts.append(_text(x, HEIGHT - BOTTOM + 16, f"{int(tick)}", anchor="middle"))
    for number, (name, curve) in enumerate(curves.items()):
        width = 1.5 + 1.75 * (len(curves) - 1 - number)  # so that those that coincide are seen
        path = _path(
            [at(i, value) if math.isfinite(value) else None for i, value in enumerate(curve)]
        )
        parts.append(
            f'<path d="{path}" fill="none" stroke="{colour(number)}" stroke-width="{width:.1f}">'
            f"<title>{escape(name)}</title></path>"
        )
    parts += _legend(list(curves))
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 6, x_name, anchor="middle"))
    return _svg(parts, y_name)


def bar_chart(bars: Mapping[str, tuple[float, float, float]], *, y_name: str) -> str:
    """Bars of (value, low, high): the line over each bar goes from low to high."""
    ticks = nice_ticks(0.0, max([high for _, _, high in bars.values()] + [1e-9]))
    high_tick = ticks[-1]
    parts = _grid(ticks, 0.0, high_tick)
    place = (WIDTH - LEFT - RIGHT) / max(1, len(bars))

    def y_of(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / high_tick)

    for number, (name, (value, low, high)) in enumerate(bars.items()):
        middle = LEFT + place * (number + 0.5)
        width = min(110.0, place * 0.5)
        top = y_of(value)
        parts.append(
            f'<rect x="{middle - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{HEIGHT - BOTTOM - top:.1f}" fill="{colour(number)}" fill-opacity="0.85">'
            f"<title>{escape(name)}</title></rect>"
        )
        parts.append(
            f'<path d="M{middle:.1f} {y_of(high):.1f}V{y_of(low):.1f}" stroke="#222" '
            'stroke-width="1.5"/>'
        )
        parts.append(_text(middle, HEIGHT - BOTTOM + 18, name, anchor="middle"))
        parts.append(_text(middle + width / 2 + 6, top + 4, f"{value:.4g}"))
    return _svg(parts, y_name)


def point_chart(
    curves: Mapping[str, Sequence[float]], labels: Sequence[str], *, x_name: str, y_name: str,
    is_joined: bool = True,
) -> str:  # fmt: skip
    """Values of each curve over labels, evenly spaced; from zero where none is below. What is not
    finite leaves a gap. `is_joined`: the labels have an order, so lines mean something."""
    finite = [value for curve in curves.values() for value in curve if math.isfinite(value)]
    if not finite:
        return _svg([_text(WIDTH / 2, HEIGHT / 2, "no value", anchor="middle")], y_name)
    ticks = nice_ticks(min(0.0, *finite), max(finite))
    low, high = ticks[0], ticks[-1]
    place = (WIDTH - LEFT - RIGHT) / len(labels)

    def at(index: int, value: float) -> tuple[float, float]:
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low))
        return LEFT + place * (index + 0.5), y

    parts = _grid(ticks, low, high)
    every = math.ceil(LETTER * (2 + max(map(len, labels))) / place)
    for index in range(0, len(labels), every):
        x, _ = at(index, low)
        parts.append(_text(x, HEIGHT - BOTTOM + 16, labels[index], anchor="middle"))
    for number, (name, curve) in enumerate(curves.items()):
        points = [at(i, value) if math.isfinite(value) else None for i, value in enumerate(curve)]
        stroke = f'stroke="{colour(number)}" stroke-width="2"{_dashes(number)}'
        if is_joined:
            parts.append(f'<path d="{_path(points)}" fill="none" {stroke}/>')
        for point, label, value in zip(points, labels, curve, strict=True):
            if point is not None:
                said = escape(", ".join(filter(None, [name, f"{label}: {value:.6g}"])))
                parts.append(
                    f'<circle cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="4" '
                    f'fill="{colour(number)}"><title>{said}</title></circle>'
                )
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 6, x_name, anchor="middle"))
    names = list(curves) if len(curves) > 1 else []
    for number, name in enumerate(names):
        y = HEIGHT + 14 + 18 * number
        parts.append(
            f'<path d="M{LEFT} {y - 4}h22" stroke="{colour(number)}" stroke-width="3"'
            f"{_dashes(number)}/>"
        )
        parts.append(_text(LEFT + 28, y, name))
    return _svg(parts, y_name, more=18 * len(names))


@dataclass(frozen=True, slots=True)
class Bar:
    """A span of time in a row."""

    start: float
    end: float
    text: str
    """Shown where the mouse is."""
    colour_index: int = 0
    is_pale: bool = False


def span_chart(
    rows: Sequence[tuple[str, Sequence[Bar]]], *, start: float, end: float, name: str,
    x_name: str, marks: Mapping[str, float] | None = None,
) -> str:  # fmt: skip
    """Rows of bars from `start` to `end`, which is what the axis counts from; what of a bar lies
    outside is cut off. Marks are lines through all rows."""
    bottom = TOP + ROW * (len(rows) + 1)
    per_unit = (WIDTH - ROW_LEFT - RIGHT) / (end - start)

    def x_of(time: float) -> float:
        return ROW_LEFT + per_unit * (time - start)

    parts = []
    for tick in nice_ticks(0.0, end - start, count=8):
        if tick <= (end - start) * (1 + 1e-9):
            x = x_of(start + tick)
            parts.append(f'<path d="M{x:.1f} {TOP + ROW - 4}V{bottom}" stroke="#ddd"/>')
            parts.append(_text(x, bottom + 16, f"{tick:g}", anchor="middle"))
    for number, (title, bars) in enumerate(rows):
        top = TOP + ROW * (number + 1)
        parts.append(_text(ROW_LEFT - 8, top + ROW - 9, title, anchor="end"))
        parts.append('<g stroke="#fff" stroke-width="0.3">')
        for bar in bars:
            left, right = max(start, bar.start), min(end, bar.end)
            if left < right:
                parts.append(
                    f'<rect x="{x_of(left):.2f}" y="{top}" width="{per_unit * (right - left):.2f}" '
                    f'height="{ROW - 4}" fill="{colour(bar.colour_index)}" '
                    f'fill-opacity="{0.45 if bar.is_pale else 0.9}">'
                    f"<title>{escape(bar.text)}</title></rect>"
                )
        parts.append("</g>")
    for said, time in (marks or {}).items():
        parts.append(f'<path d="M{x_of(time):.1f} {TOP + 4}V{bottom}" stroke="#222"/>')
        parts.append(_text(x_of(time) - 4, TOP + 12, said, anchor="end"))
    parts.append(_text((ROW_LEFT + WIDTH) / 2, bottom + 34, x_name, anchor="middle"))
    return _whole(parts, name, bottom + BOTTOM)


def as_file(svg: str) -> str:
    """A chart as a file that programs open: with a name space, a font, and a white ground."""
    opened = (
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12" '
        'style="background:#fff" '
    )
    return svg.replace("<svg ", opened, 1) + "\n"


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


def _grid(ticks: Sequence[float], low: float, high: float) -> list[str]:
    parts = []
    for tick in ticks:
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - (tick - low) / (high - low))
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{tick:g}", anchor="end"))
    return parts


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    for number, name in enumerate(names):
        x, y = WIDTH - RIGHT - 110, TOP + 12 + 18 * number
        parts.append(f'<path d="M{x} {y - 4}h22" stroke="{colour(number)}" stroke-width="3"/>')
        parts.append(_text(x + 28, y, name))
    return parts


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    parts, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        parts.append(f"{pen}{point[0]:.1f} {point[1]:.1f}")
        pen = "L"
    return "".join(parts)


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _dashes(index: int) -> str:
    """The dash pattern of a curve whose colour others have too."""
    again = index // len(COLOURS)
    return f' stroke-dasharray="{8 // again} 4"' if again else ""


def _svg(parts: Sequence[str], name: str, *, more: int = 0) -> str:
    """With the name of its vertical axis, and so many pixels below."""
    middle = (TOP + HEIGHT - BOTTOM) / 2
    axis = (
        f'<text transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(name)}</text>"
    )
    return _whole([axis, *parts], name, HEIGHT + more)


def _whole(parts: Sequence[str], name: str, height: float) -> str:
    label = escape(name, quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )
