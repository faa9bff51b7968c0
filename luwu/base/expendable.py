"""Output that a run can do without: a write that fails is given up, with one warning.

Logs, events, counters and records say how a run goes; none of them is worth the run, and nor is
what it prints. On a disk that is full, the state's errors end the node (`refusal`), and these
do not.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def print_if_possible(text: str, stream: IO[str] | None = None) -> None:
    """Print a line, to standard error by default; nothing if that cannot be written."""
    try:
        print(text, file=stream or sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # a log on the same disk, or nobody reads any more


def give_up_stream(stream: IO[str]) -> None:
    """No process reads it any more, or its disk is full: what is printed from now on goes nowhere.

    So does what its buffer holds, which Python would try to write at its end, and fail.
    """
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "ab") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def open_closed_streams() -> None:
    """Open the standard streams that are closed (`>&-`), lest a file takes their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode))  # noqa: SIM115


class Expendable:
    """Writes of one process that may fail; the first failure in each directory is reported."""

    def __init__(self, say: Callable[[str], object] = print_if_possible) -> None:
        self._say = say
        self._named: set[Path] = set()

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """A write that fails inside the `with` block is given up."""
        try:
            yield
        except OSError as exc:
            self.give_up(path, exc)

    def give_up(self, path: Path, error: OSError) -> None:
        """This file cannot be written."""
        if path.parent not in self._named:
            self._named.add(path.parent)
            self._say(
                f"WARNING: {path.name} cannot be written in {path.parent}: "
                f"{error.strerror or error}. The run continues without it; records are missing"
            )
