"""The rows of `benchmarks.hosts` as a picture: a bar for each step time, a line for its bound."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.harness import Row

_COLOURS = {"luwu": "#2563a8", "fsdp": "#c0642c", "ddp": "#6b8e4e"}
_LEFT, _WIDTH, _BAR, _GAP = 200, 520, 16, 14


def plot(rows: Sequence[Row]) -> str:
    """An SVG document; each case is a group with a scale of its own, since rates differ tenfold."""
    cases = list(dict.fromkeys(str(row["case"]) for row in rows))
    parts, top = [], 24
    for case in cases:
        group = [row for row in rows if row["case"] == case]
        most = max(max(row["seconds_median"], row["bound_seconds"]) for row in group)
        parts.append(f'<text x="4" y="{top + _BAR - 4}">{escape(case)}</text>')
        for row in group:
            parts += _bar(row, most, top)
            top += _BAR + 2
        top += _GAP
    legend = (
        "step time; the mark is the bound of links or compute; cpu: processors bind too; "
        "each case has its own scale"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 170}" '
        f'height="{top + 4}" font-family="sans-serif" font-size="11">'
        f'<text x="4" y="14">{escape(legend)}</text>{"".join(parts)}</svg>\n'
    )


def _bar(row: Row, most: float, top: int) -> list[str]:
    arm, seconds, bound = str(row["arm"]), row["seconds_median"], row["bound_seconds"]
    width, mark = _WIDTH * seconds / most, _LEFT + _WIDTH * bound / most
    text = f"{arm} {seconds * 1e3:.0f} ms, bound {bound * 1e3:.0f}"
    if row["bound_by"] == "compute":
        text += " (compute)"
    if row["is_cpu_bound"]:
        text += ", cpu"
    return [
        f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR}" '
        f'fill="{_COLOURS.get(arm, "#888")}"/>',
        f'<line x1="{mark:.1f}" x2="{mark:.1f}" y1="{top - 1}" y2="{top + _BAR + 1}" '
        'stroke="#000" stroke-width="2"/>',
        f'<text x="{_LEFT + max(width, mark - _LEFT) + 6:.1f}" y="{top + _BAR - 4}">'
        f"{escape(text)}</text>",
    ]
