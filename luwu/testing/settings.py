"""Settings of the plugin: from an argument, the test's marker, the command line or the ini file."""

from __future__ import annotations

import math
from typing import Any, Final

import pytest

DEFAULTS: Final = {"workers": 2, "timeout": 60.0, "keep": False}
MARKER: Final = "luwu"
OF_MARKER: Final = ("workers", "timeout")


def setting(
    config: pytest.Config, name: str, argument: Any = None, *, item: pytest.Item | None = None
) -> Any:
    """The value of `workers`, `timeout` or `keep`; `item`: the test that asks.

    Raises: pytest.UsageError
    """
    for where, value in (
        (f"{name}=", argument),
        (f"@pytest.mark.{MARKER} of {'' if item is None else item.nodeid}", _marked(item, name)),
        (f"--luwu-{name}", config.getoption(f"--luwu-{name}")),
        (f"luwu_{name} of {config.inipath}", config.getini(f"luwu_{name}")),
    ):
        if value not in (None, ""):
            return _checked(name, value, where)
    return DEFAULTS[name]


def check_marker(item: pytest.Item) -> None:
    """Raises pytest.UsageError unless the test's markers can be used."""
    for mark in item.iter_markers(MARKER):
        unknown = [*map(repr, mark.args), *(key for key in mark.kwargs if key not in OF_MARKER)]
        if unknown:
            raise pytest.UsageError(
                f"@pytest.mark.{MARKER} of {item.nodeid}: {unknown[0]} is unknown; it takes "
                f"{' and '.join(f'{name}=' for name in OF_MARKER)}"
            )
    for name in OF_MARKER:
        setting(item.config, name, item=item)


def _marked(item: pytest.Item | None, name: str) -> Any:
    """The value of the marker closest to the test that has it."""
    marks = () if item is None else item.iter_markers(MARKER)
    return next((mark.kwargs[name] for mark in marks if name in mark.kwargs), None)


def _checked(name: str, value: Any, where: str) -> Any:
    if name == "workers":
        text = str(value)
        if not text.isdecimal() or int(text) < 1:
            raise pytest.UsageError(f"{where}: {value!r} is not a whole number of at least 1")
        return int(text)
    if name == "timeout":
        try:
            seconds = float(value)
        except (TypeError, ValueError):
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise pytest.UsageError(f"{where}: {value!r} is not a number of seconds above 0")
        return seconds
    return value
