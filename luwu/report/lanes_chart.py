"""The picture of a step: a row per engine, its busy share at the right, the limit tinted.

Steps of several runs may be drawn over each other: each row then has a bar for each of them, on one
axis of time.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from html import escape
from typing import Final

from luwu.report.chart import LETTER, WIDE, nice_ticks, text, whole
from luwu.report.lanes import COMPUTE, WAIT, Lane, Lanes, Piece
from luwu.report.palette import engine_colour

ROW: Final = 26
BAR: Final = 18
BAR_OF_TWO: Final = 10
TITLE_LINE: Final = 19
AXIS: Final = 30
PALE: Final = "pale: forward"
PALE_OPACITY: Final = 0.5
OUTLINED: Final = 4
"""Pixels from which a pale piece has an outline."""


def lanes_chart(steps: Mapping[str, Lanes], *, width: int = WIDE) -> str:
    """Steps by name, the first one deciding what is tinted; a row of which nothing is busy in any
    of them is left out, except those of workers."""
    first = next(iter(steps.values()))
    rows = {
        engine: [lane for each in steps.values() for lane in each.lanes if lane.engine == engine]
        for engine in first.titles
    }
    rows = {
        engine: lanes
        for engine, lanes in rows.items()
        if engine in (COMPUTE, WAIT) or any(lane.pieces for lane in lanes)
    }
    length_s = max(each.length_s for each in steps.values())
    has_pale = any(piece.is_pale for lane in rows[COMPUTE] for piece in lane.pieces)
    titles = [*(first.titles[engine] for engine in rows), *([f"{PALE}  "] if has_pale else [])]
    left = 12 + LETTER * max(map(len, titles))
    right = 12 + LETTER * (len("100 %") if width < WIDE else len("100 % busy"))
    per_s = (width - left - right) / length_s
    parts, top = [], 0.0
    title = f"Step {first.step}: {first.verdict}"
    for line in textwrap.wrap(title, int(width / (1.15 * LETTER))):  # bold is wider
        top += TITLE_LINE
        parts.append(text(0, top - 5, line, is_bold=True))
    if len(steps) > 1:
        top += TITLE_LINE
        parts.append(text(0, top - 5, f"bars of a row, from the top: {', '.join(steps)}"))
    bottom = top + 6 + ROW * len(rows)
    scale, unit = (1e3, "ms") if length_s < 1 else (1.0, "s")
    for tick in nice_ticks(0.0, length_s * scale, count=3 + width // 150):
        x = left + per_s * tick / scale
        if x <= width - right + 1:
            line = f"M{x:.1f} {top + 2:.1f}V{bottom + 4:.1f}"
            parts.append(f'<path d="{line}" stroke="var(--line)"/>')
            parts.append(text(x, bottom + 18, f"{tick:g}", anchor="middle"))
    parts.append(text(width, bottom + 18, unit, anchor="end"))
    if has_pale:
        parts.append(text(left - 20, bottom + 18, PALE, anchor="end"))
    for number, (engine, lanes) in enumerate(rows.items()):
        is_limit = first.is_limit(engine)
        parts += _row(
            first.titles[engine], lanes, top + 6 + ROW * number, left, per_s, width, is_limit
        )
    return whole(parts, first.verdict, width, bottom + AXIS)


def _row(
    title: str, lanes: list[Lane], top: float, left: float, per_s: float, width: int, is_limit: bool
) -> list[str]:  # fmt: skip
    parts = []
    if is_limit:
        parts.append(
            f'<rect x="0" y="{top:.1f}" width="{width}" height="{ROW - 2}" rx="3" '
            'fill="var(--tint)"><title>limits the step</title></rect>'
        )
    parts.append(text(left - 8, top + ROW / 2 + 3, title, anchor="end", is_bold=is_limit))
    height = BAR if len(lanes) == 1 else BAR_OF_TWO
    for number, lane in enumerate(lanes):
        y = top + (ROW - 2 - height * len(lanes)) / 2 + height * number
        colour = engine_colour(lane.engine)
        parts += [_piece(each, title, colour, y, height - 1, left, per_s) for each in lane.pieces]
    busy = f"{lanes[0].busy_ratio:.0%}".replace("%", " %")
    shown = f"{busy} busy" if width >= WIDE else busy
    parts.append(text(width, top + ROW / 2 + 3, shown, anchor="end", is_bold=is_limit))
    return parts


def _piece(
    piece: Piece, title: str, colour: str, y: float, height: float, left: float, per_s: float
) -> str:
    length_s = piece.end_s - piece.start_s
    shade = f' fill-opacity="{PALE_OPACITY}"' if piece.is_pale else ""
    if piece.is_pale and per_s * length_s > OUTLINED:
        shade += f' stroke="{colour}"'
    kind = " (forward)" if piece.is_pale else ""
    said = f"{title}{kind}: {length_s * 1e3:,.2f} ms from {piece.start_s * 1e3:,.1f} ms on"
    return (
        f'<rect x="{left + per_s * piece.start_s:.2f}" y="{y:.1f}" '
        f'width="{max(0.5, per_s * length_s):.2f}" height="{height:g}" fill="{colour}"{shade}>'
        f"<title>{escape(said)}</title></rect>"
    )
