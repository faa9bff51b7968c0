"""The picture of a step: a row per engine, its busy share at the right, the limit tinted.

Steps of several runs may be drawn over each other: each row then has a bar for each of them, on one
axis of time.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from luwu.report.chart import LETTER, WIDE, nice_ticks, text, whole
from luwu.report.lanes import Lanes, Piece
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
PIECES_MAX: Final = 400
"""Pieces of a bar at most; pixel columns are drawn where there are more."""
ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Row:
    """A row: bars from the top, each of pieces, with the share of the time it is busy."""

    title: str
    bars: tuple[tuple[tuple[Piece, ...], float], ...]
    colour: str
    is_limit: bool = False


def lanes_chart(steps: Mapping[str, Lanes], *, width: int = WIDE) -> str:
    """Steps by name, the first one deciding what is tinted; a row of which nothing is busy in any
    of them is left out, except those of workers."""
    first = next(iter(steps.values()))
    rows = []
    for engine, title in first.titles.items():
        bars = [lane for each in steps.values() for lane in each.lanes if lane.engine == engine]
        if not any(lane.pieces for lane in bars) and engine not in ("compute", "wait"):
            continue
        pieces = tuple((lane.pieces, lane.busy_ratio) for lane in bars)
        rows.append(Row(title, pieces, engine_colour(engine), first.is_limit(engine)))
    names = list(steps) if len(steps) > 1 else []
    title = f"Step {first.step}: {first.verdict}"
    length_s = max(each.length_s for each in steps.values())
    return rows_chart(rows, length_s, title=title, names=names, width=width, name=first.verdict)


def rows_chart(
    rows: Sequence[Row], length_s: float, *, name: str, title: str = "",
    names: Sequence[str] = (), width: int = WIDE,
) -> str:  # fmt: skip
    """Rows over a stretch of time from 0; `names` of the bars that share a row, from the top."""
    has_pale = any(piece.is_pale for row in rows for pieces, _ in row.bars for piece in pieces)
    titles = [*(row.title for row in rows), *([f"{PALE}  "] if has_pale else [])]
    left = 12 + LETTER * max(map(len, titles))
    right = 12 + LETTER * (len("100 %") if width < WIDE else len("100 % busy"))
    per_s = (width - left - right) / length_s
    parts, top = [], 0.0
    for line in textwrap.wrap(title, int(width / (1.15 * LETTER))):  # bold is wider
        top += TITLE_LINE
        parts.append(text(0, top - 5, line, is_bold=True))
    if len(names) > 1:
        top += TITLE_LINE
        parts.append(text(0, top - 5, f"bars of a row, from the top: {', '.join(names)}"))
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
    for number, row in enumerate(rows):
        parts += _row(row, top + 6 + ROW * number, left, per_s, width)
    return whole(parts, name, width, bottom + AXIS)


def _row(row: Row, top: float, left: float, per_s: float, width: int) -> list[str]:
    parts = []
    if row.is_limit:
        parts.append(
            f'<rect x="0" y="{top:.1f}" width="{width}" height="{ROW - 2}" rx="3" '
            'fill="var(--tint)"><title>limits the step</title></rect>'
        )
    is_bold = row.is_limit
    parts.append(text(left - 8, top + ROW / 2 + 3, row.title, anchor="end", is_bold=is_bold))
    height = BAR if len(row.bars) == 1 else BAR_OF_TWO
    for number, (pieces, ratio) in enumerate(row.bars):
        y = top + (ROW - 2 - height * len(row.bars)) / 2 + height * number
        seen = _visible(pieces, 1 / per_s)
        parts += [_piece(each, row, y, height - 1, left, per_s) for each in seen]
        if number == 0:
            busy = f"{ratio:.0%}".replace("%", " %")
            shown = f"{busy} busy" if width >= WIDE else busy
            parts.append(text(width, top + ROW / 2 + 3, shown, anchor="end", is_bold=is_bold))
    return parts


def _visible(pieces: Sequence[Piece], pixel_s: float) -> list[Piece]:
    """The pieces; of too many, pixel columns, as many as they fill together."""
    if len(pieces) <= PIECES_MAX:
        return list(pieces)
    columns: dict[int, list[float]] = {}
    for piece in pieces:
        for column in range(int(piece.start_s / pixel_s), int(piece.end_s / pixel_s) + 1):
            start_s, end_s = column * pixel_s, (column + 1) * pixel_s
            inside_s = min(piece.end_s, end_s) - max(piece.start_s, start_s)
            columns.setdefault(column, [0.0, 0.0])[piece.is_pale] += max(0.0, inside_s)
    found: list[Piece] = []
    left_s = 0.0
    for column, (plain_s, pale_s) in sorted(columns.items()):
        start_s, is_pale = column * pixel_s, pale_s > plain_s
        left_s += plain_s + pale_s
        if left_s < pixel_s * (1 - ROUNDING):
            continue
        left_s -= pixel_s
        last = found[-1] if found else None
        if last and last.is_pale == is_pale and start_s - last.end_s < pixel_s / 2:
            found[-1] = Piece(last.start_s, start_s + pixel_s, is_pale)
        else:
            found.append(Piece(start_s, start_s + pixel_s, is_pale))
    return found


def _piece(piece: Piece, row: Row, y: float, height: float, left: float, per_s: float) -> str:
    length_s = piece.end_s - piece.start_s
    shade = f' fill-opacity="{PALE_OPACITY}"' if piece.is_pale else ""
    if piece.is_pale and per_s * length_s > OUTLINED:
        shade += f' stroke="{row.colour}"'
    kind = " (forward)" if piece.is_pale else ""
    said = f"{row.title}{kind}: {length_s * 1e3:,.2f} ms from {piece.start_s * 1e3:,.1f} ms on"
    return (
        f'<rect x="{left + per_s * piece.start_s:.2f}" y="{y:.1f}" '
        f'width="{max(0.5, per_s * length_s):.2f}" height="{height:g}" fill="{row.colour}"{shade}>'
        f"<title>{escape(said)}</title></rect>"
    )
