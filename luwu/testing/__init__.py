"""Clusters for tests, and the pytest plugin that brings them.

plugin.py        the pytest plugin: options, marker, fixtures, frames that a failure hides
fixtures.py      what the fixtures return
settings.py      settings, from an argument, a marker, the command line or the ini file
same_weights.py  weights of several workers beside those of one process
cluster.py       a whole cluster of processes
worker.py        the program of a worker process
calls.py         a function named, never sent as an object; arguments and results in files
record.py        what one test started and left behind, and its tracebacks
leftovers.py     how leftovers are found (I8)
leash.py         `luwu` that ends when its standard input does

Tests use the names of `__all__`, which are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from luwu.base.errors import DeadlineError, WorkerFailed
    from luwu.testing.same_weights import assert_same_weights_as_single

__all__ = ["DeadlineError", "WorkerFailed", "assert_same_weights_as_single"]

_HOME: Final = {
    "DeadlineError": "luwu.base.errors",
    "WorkerFailed": "luwu.base.errors",
    "assert_same_weights_as_single": "luwu.testing.same_weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'luwu.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
