"""Red for errors and bold for verdicts, on a terminal alone: never in a pipe or a file.

NO_COLOR in the environment (https://no-color.org) and TERM=dumb switch them off.
"""

from __future__ import annotations

import os
from typing import IO, Final

_RED: Final = "31"
_BOLD: Final = "1"


def is_screen(stream: IO[str]) -> bool:
    """True for a terminal that takes control characters."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def red(text: str, stream: IO[str]) -> str:
    """The text of an error, as it is printed to the stream."""
    return _painted(text, _RED, stream)


def bold(text: str, stream: IO[str]) -> str:
    """The text of a verdict, as it is printed to the stream."""
    return _painted(text, _BOLD, stream)


def _painted(text: str, code: str, stream: IO[str]) -> str:
    if not text or os.environ.get("NO_COLOR") or not is_screen(stream):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"
