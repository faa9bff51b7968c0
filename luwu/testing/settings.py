"""Settings of the plugin: from an argument, else the command line, else the ini file."""

from __future__ import annotations

import math
from typing import Any

import pytest

DEFAULTS = {"connect": None, "workers": 2, "timeout": 60.0, "keep": False}


def setting(config: pytest.Config, name: str, argument: Any = None) -> Any:
    """The value of `connect`, `workers`, `timeout` or `keep`. Raises pytest.UsageError."""
    for where, value in (
        (f"{name}=", argument),
        (f"--luwu-{name}", config.getoption(f"--luwu-{name}")),
        (f"luwu_{name} of {config.inipath}", config.getini(f"luwu_{name}")),
    ):
        if value not in (None, ""):
            return _checked(name, value, where)
    return DEFAULTS[name]


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
