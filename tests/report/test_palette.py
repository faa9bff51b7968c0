"""Colours: contrast by WCAG, and no curve that is told by its colour alone."""

from __future__ import annotations

import re

import pytest

from luwu.report import palette
from luwu.report.chart import line_chart

SCHEMES = {"light": palette.LIGHT, "dark": palette.DARK}


def linear(colour: str) -> list[float]:
    """Linear red, green and blue in [0, 1]."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, relative luminance."""
    light = [sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(each), strict=True))
             for each in (one, other)]  # fmt: skip
    return (max(light) + 0.05) / (min(light) + 0.05)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_can_be_read(scheme: str) -> None:
    """Goal: WCAG AA, 4.5:1, on every ground that text stands on."""
    colours = SCHEMES[scheme]
    for ground in ("ground", "tint", "panel"):
        assert contrast(colours["ink"], colours[ground]) >= 4.5
    for ground in ("ground", "panel"):
        assert contrast(colours["soft"], colours[ground]) >= 4.5


def test_no_curve_is_told_by_its_colour_alone() -> None:
    """Goal: neighbours differ in their dashes too, whatever their colours."""
    curves = {str(n): [float(n), float(2 * n)] for n in range(4)}
    dashes = re.findall(r'stroke-width="2"(.*?)><title>', line_chart(curves, y_name=""))
    assert len(set(dashes)) == 4


def test_a_system_has_one_colour_wherever_it_stands() -> None:
    for name in ("luwu", "fsdp"):
        assert len({palette.system_colour(name, index) for index in range(9)}) == 1
