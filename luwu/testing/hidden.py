"""Frames that a failure does not show: those between a test and its function in a worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

_PACKAGES: Final = ("luwu.base", "luwu.join", "luwu.launch", "luwu.testing")


@contextmanager
def hidden_frames(item: pytest.Item) -> Iterator[None]:
    """Hide frames of these packages from pytest, if the test uses a fixture of luwu.

    pytest looks for `__tracebackhide__` among the globals of each frame when it writes a failure
    down; `--full-trace` shows all frames.
    """
    modules = []
    if "luwu_record" in getattr(item, "fixturenames", ()):
        named = sys.modules.copy()  # in one step: another thread may import
        modules = [
            vars(module)
            for name, module in named.items()
            if name.startswith(_PACKAGES) and not hasattr(module, "__tracebackhide__")
        ]
    for each in modules:
        each["__tracebackhide__"] = True
    try:
        yield
    finally:
        for each in modules:
            each.pop("__tracebackhide__", None)
