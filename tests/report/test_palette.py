"""Colours that every reader tells apart: contrast by WCAG, distances as three kinds of readers with
a colour deficiency see them (Machado, Oliveira and Fernandes 2009, severity 1; CIE76)."""

from __future__ import annotations

import itertools
import re

import pytest

from luwu.report import palette
from luwu.report.chart import line_chart

SEEN_BY = {
    "anybody": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}  # fmt: skip
DISTANCE_MIN = 15
SCHEMES = {"light": palette.LIGHT, "dark": palette.DARK}
ARMS = ("luwu", "luwu_ram", "fsdp", "fsdp_offload", "ddp", "single")


def linear(colour: str) -> list[float]:
    """Linear red, green and blue in [0, 1]."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, relative luminance."""
    light = [sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(each), strict=True))
             for each in (one, other)]  # fmt: skip
    return (max(light) + 0.05) / (min(light) + 0.05)


def lab(colour: str, seen_by: str) -> list[float]:
    """CIE L*a*b* (daylight) of a colour as a reader sees it."""
    rgb = [min(1.0, max(0.0, sum(w * c for w, c in zip(row, linear(colour), strict=True))))
           for row in SEEN_BY[seen_by]]  # fmt: skip
    matrix = (
        (0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750),
        (0.0193339, 0.1191920, 0.9503041),
    )  # fmt: skip
    white = (0.95047, 1.0, 1.08883)
    f = []
    for row, w in zip(matrix, white, strict=True):
        t = sum(a * c for a, c in zip(row, rgb, strict=True)) / w
        f.append(t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116)
    return [116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])]


def of(scheme: dict[str, str], variable: str) -> str:
    return scheme[variable.removeprefix("var(--").removesuffix(")")]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_can_be_read(scheme: str) -> None:
    """Goal: WCAG AA, 4.5:1, on every ground that text stands on."""
    colours = SCHEMES[scheme]
    for ground in ("ground", "tint", "panel"):
        assert contrast(colours["ink"], colours[ground]) >= 4.5
    for ground in ("ground", "panel"):
        assert contrast(colours["soft"], colours[ground]) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("seen_by", SEEN_BY)
def test_arms_of_a_chart_are_told_apart(scheme: str, seen_by: str) -> None:
    found = {name: of(SCHEMES[scheme], palette.system_colour(name, 0)) for name in ARMS}
    for one, other in itertools.combinations(ARMS, 2):
        pair = zip(lab(found[one], seen_by), lab(found[other], seen_by), strict=True)
        distance = sum((a - b) ** 2 for a, b in pair) ** 0.5
        assert distance >= DISTANCE_MIN, f"{one} and {other}, {scheme}, {seen_by}: {distance:.1f}"


def test_no_curve_is_told_by_its_colour_alone() -> None:
    """Goal: neighbours differ in their dashes too, whatever their colours."""
    curves = {str(n): [float(n), float(2 * n)] for n in range(4)}
    dashes = re.findall(r'stroke-width="2"(.*?)><title>', line_chart(curves, y_name=""))
    assert len(set(dashes)) == 4


def test_a_system_has_one_colour_wherever_it_stands() -> None:
    for name in ("luwu", "fsdp"):
        assert len({palette.system_colour(name, index) for index in range(9)}) == 1
