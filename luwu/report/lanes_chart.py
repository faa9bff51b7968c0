"""The picture of a step: a row per engine, its busy share at the right, the limit tinted."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from html import escape
from typing import Any, Final

from luwu.report.chart import LETTER, TICKS, WIDTH, nice_ticks, text, whole
from luwu.report.lanes import COMPUTE, TITLES, WAIT, Piece
from luwu.report.palette import engine_colour

ROW: Final = 26
BAR: Final = 17
TITLE_LINE: Final = 19
AXIS: Final = 30
PALE: Final = "pale: forward"
PALE_OPACITY: Final = 0.5
OUTLINED: Final = 4
"""Pixels from which a pale piece has an outline."""


def lanes_chart(step: Mapping[str, Any]) -> str:
    """A step as `Lanes.document` has it; a lane without a piece is left out, except those of
    workers."""
    lanes = [lane for lane in step["lanes"] if lane["engine"] in (COMPUTE, WAIT) or lane["pieces"]]
    length_s = step["length_s"]
    has_pale = any(is_pale for lane in lanes for _, _, is_pale in lane["pieces"])
    titles = [*(TITLES[lane["engine"]] for lane in lanes), *([f"{PALE}  "] if has_pale else [])]
    left = 12 + LETTER * max(map(len, titles))
    right = 12 + LETTER * len("100 % busy")
    per_s = (WIDTH - left - right) / length_s
    parts, top = [], 0.0
    title = f"Step {step['step']}: {step['verdict']}"
    for line in textwrap.wrap(title, int(WIDTH / (1.15 * LETTER))):  # bold is wider
        top += TITLE_LINE
        parts.append(text(0, top - 5, line, is_bold=True))
    bottom = top + 6 + ROW * len(lanes)
    scale, unit = (1e3, "ms") if length_s < 1 else (1.0, "s")
    for tick in nice_ticks(0.0, length_s * scale, count=TICKS):
        x = left + per_s * tick / scale
        if x <= WIDTH - right + 1:
            line = f"M{x:.1f} {top + 2:.1f}V{bottom + 4:.1f}"
            parts.append(f'<path d="{line}" stroke="var(--line)"/>')
            parts.append(text(x, bottom + 18, f"{tick:g}", anchor="middle"))
    parts.append(text(WIDTH, bottom + 18, unit, anchor="end"))
    if has_pale:
        parts.append(text(left - 20, bottom + 18, PALE, anchor="end"))
    for number, lane in enumerate(lanes):
        parts += _row(lane, top + 6 + ROW * number, left, per_s)
    return whole(parts, step["verdict"], bottom + AXIS)


def _row(lane: Mapping[str, Any], top: float, left: float, per_s: float) -> list[str]:
    parts, title, is_limit = [], TITLES[lane["engine"]], lane["is_limit"]
    if is_limit:
        parts.append(
            f'<rect x="0" y="{top:.1f}" width="{WIDTH}" height="{ROW - 2}" rx="3" '
            'fill="var(--tint)"><title>limits the step</title></rect>'
        )
    parts.append(text(left - 8, top + ROW / 2 + 3, title, anchor="end", is_bold=is_limit))
    colour = engine_colour(lane["engine"])
    parts += [_piece(each, title, colour, top + 3, left, per_s) for each in lane["pieces"]]
    busy = f"{lane['busy_ratio']:.0%}".replace("%", " %")
    parts.append(text(WIDTH, top + ROW / 2 + 3, f"{busy} busy", anchor="end", is_bold=is_limit))
    return parts


def _piece(piece: Piece, title: str, colour: str, y: float, left: float, per_s: float) -> str:
    start_s, end_s, is_pale = piece
    length_s = end_s - start_s
    shade = f' fill-opacity="{PALE_OPACITY}"' if is_pale else ""
    if is_pale and per_s * length_s > OUTLINED:
        shade += f' stroke="{colour}"'
    kind = " (forward)" if is_pale else ""
    said = f"{title}{kind}: {length_s * 1e3:,.2f} ms from {start_s * 1e3:,.1f} ms on"
    return (
        f'<rect x="{left + per_s * start_s:.2f}" y="{y:.1f}" '
        f'width="{max(0.5, per_s * length_s):.2f}" height="{BAR}" fill="{colour}"{shade}>'
        f"<title>{escape(said)}</title></rect>"
    )
