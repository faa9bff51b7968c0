"""Colours of charts and pages: one system and one engine have the same colour everywhere.

The hues are Okabe and Ito's, which readers with any of the common colour deficiencies tell apart
(Color Universal Design, 2008); the dark scheme has lighter ones of the same hues. No chart depends
on colour alone: rows have labels, curves have dashes or a label of their own.

Charts name colours as CSS variables (`var(--luwu)`), so that one drawing serves both schemes.
`STYLE` defines the variables.
"""

from __future__ import annotations

from typing import Final

LIGHT: Final = {
    "ink": "#1a1a1a", "soft": "#555555", "line": "#d4d4d4", "ground": "#ffffff",
    "tint": "#fff0c2", "panel": "#f5f5f5",
    "blue": "#0072b2", "vermilion": "#d55e00", "green": "#009e73", "purple": "#cc79a7",
    "orange": "#e69f00", "sky": "#56b4e9", "black": "#1a1a1a", "grey": "#8c8c8c",
}  # fmt: skip
DARK: Final = {
    "ink": "#ececec", "soft": "#b4b4b4", "line": "#454545", "ground": "#16181c",
    "tint": "#40360f", "panel": "#22252b",
    "blue": "#3a84cc", "vermilion": "#e07a38", "green": "#46dc94", "purple": "#d49cc8",
    "orange": "#f0c233", "sky": "#a0c8fc", "black": "#ececec", "grey": "#8f8f8f",
}  # fmt: skip
HUES: Final = ("blue", "vermilion", "green", "purple", "orange", "sky", "black", "grey")
DASHES: Final = ("", "7 4", "2 3", "9 3 2 3")

_SYSTEMS: Final = {
    "luwu": "blue", "luwu_ram": "sky", "fsdp": "vermilion", "fsdp_offload": "orange",
    "ddp": "purple", "single": "green",
}  # fmt: skip
"""Arms of `luwu compare`."""
_ENGINES: Final = {
    "compute": "blue", "wait": "vermilion", "pull": "sky", "push": "orange", "up": "orange",
    "down": "sky", "sum": "purple", "update": "green", "read": "grey", "write": "black",
}  # fmt: skip
"""Rows of a picture of a step."""


def system_colour(name: str, index: int) -> str:
    """The colour of an arm, or of a run of any other name, which gets the index-th."""
    return _variable(_SYSTEMS.get(name, HUES[index % len(HUES)]))


def engine_colour(name: str) -> str:
    """The colour of an engine of a step."""
    return _variable(_ENGINES[name])


def dash(index: int) -> str:
    """The dash pattern of the index-th curve of a chart: neighbours differ without any colour."""
    return DASHES[index % len(DASHES)]


def _variable(name: str) -> str:
    return f"var(--{name})"


def _rules(colours: dict[str, str]) -> str:
    return ";".join(f"--{name}:{value}" for name, value in colours.items())


STYLE: Final = (
    f":root{{color-scheme:light dark;{_rules(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_rules(DARK)}}}}}"
    f"@media print{{:root{{{_rules(LIGHT)}}}}}"
)
"""The variables, as a style sheet. Paper is light whatever the screen was."""
