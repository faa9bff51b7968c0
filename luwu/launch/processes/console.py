"""The launcher's output: lines that stay, and one live line on a terminal."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import IO


class Console:
    """Prints to standard error, so that standard output is free for results."""

    def __init__(self, stream: IO[str] | None = None, *, details: bool = True) -> None:
        """`details`: whether `detail` is printed too."""
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._has_details = details
        self._live = ""
        self._is_in_line = False
        """True if the last output ended in the middle of a line."""

    def say(self, text: str = "") -> None:
        """Print a line that stays."""
        self._erase()
        self._print("\n" * self._is_in_line + text + "\n")
        self._is_in_line = False

    def detail(self, text: str) -> None:
        """Print a line that most people do not need."""
        if self._has_details:
            self.say(text)

    def pass_on(self, data: bytes, is_error: bool) -> None:
        """Print what a worker has printed, as it came, to standard error or standard output."""
        stream = self._stream if is_error else sys.stdout
        self._erase()
        if is_error or (self._is_terminal and stream.isatty()):
            self._is_in_line = not data.endswith(b"\n")
        if hasattr(stream, "buffer"):
            stream.flush()
            stream.buffer.write(data)
        else:
            stream.write(data.decode(errors="replace"))
        stream.flush()

    def live(self, text: str) -> None:
        """Replace the live line; without a terminal it is not shown."""
        if not self._is_terminal or text == self._live:
            return
        self._erase()
        columns = shutil.get_terminal_size().columns
        self._live = text[: columns - 1]
        self._print(self._live)

    @property
    def is_terminal(self) -> bool:
        """True if a live line is seen."""
        return self._is_terminal

    def end_live(self) -> None:
        """Remove the live line."""
        self._erase()

    def _erase(self) -> None:
        if self._live:
            self._print("\r\x1b[K")
            self._live = ""

    def _print(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads any more, or it is a file on a full disk; the run goes on


class LogFollower:
    """New whole lines of a growing file, each time it is asked."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._rest = b""
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def lines(self, *, is_last: bool = False) -> list[str]:
        """The lines completed since the last call; at the end of all, an incomplete one too."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if is_last and self._rest:
            lines.append(self._rest)
            self._rest = b""
        return [line.decode(errors="replace") for line in lines]


def tail(
    path: Path, *, lines_max: int = 20, bytes_max: int = 16 * 1024, start: int = 0
) -> str:  # fmt: skip
    """The last lines of a file, of what stands from `start` on, for an error message."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(start, file.tell() - bytes_max))
            data = file.read()
    except OSError:
        return ""
    return "\n".join(data.decode(errors="replace").rstrip().splitlines()[-lines_max:])
