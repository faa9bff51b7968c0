"""Red for errors and bold for verdicts, on a terminal alone: never in a pipe or a file.

NO_COLOR in the environment (https://no-color.org) and TERM=dumb switch them off.
"""

from __future__ import annotations

import os
from typing import IO, Final

_RED: Final = "31"
_BOLD: Final = "1"


def red(text: str, stream: IO[str]) -> str:
    """The text of an error, as it is printed to the stream."""
    return _painted(text, _RED, stream)


def bold(text: str, stream: IO[str]) -> str:
    """The text of a verdict, as it is printed to the stream."""
    return _painted(text, _BOLD, stream)


def _painted(text: str, code: str, stream: IO[str]) -> str:
    is_off = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if not text or is_off or not stream.isatty():
        return text
    return f"\x1b[{code}m{text}\x1b[0m"
