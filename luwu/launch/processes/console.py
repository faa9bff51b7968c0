"""The launcher's output: what goes to the terminal is decided here, and all of it to the log.

say, waiting   what everybody sees: the start in a line or two, restarts, results
detail         what was decided and found on the way: in the log, and with --verbose
pass_on        what the script prints, as it came
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import IO, Final

from luwu.base.clock import local_time_text
from luwu.base.expendable import give_up_stream
from luwu.base.foreign import open_lines

LAUNCHER: Final = "launcher"
"""The launcher's log among those of a run."""


class Console:
    """Prints to standard error, so that standard output is free for results."""

    def __init__(
        self, stream: IO[str] | None = None, *, details: bool = True, log: Path | None = None
    ) -> None:
        """`details`: whether `detail` is printed too."""
        self._stream = stream or sys.stderr
        self._has_details = details
        self.log = log
        """The file that gets every line."""
        self._details: set[str] = set()
        self._is_waiting = False
        self._is_in_line = False
        """True if the last output ended in the middle of a line."""

    def say(self, text: str = "") -> None:
        """Print a line that stays."""
        self._write_log(text)
        self._show(text)

    def detail(self, text: str) -> None:
        """Print a line that most people do not need, once; several arms may have the same."""
        self._write_log(text)
        if self._has_details and text not in self._details:
            self._details.add(text)
            self._show(text)

    def waiting(self, text: str) -> None:
        """Print what is waited for, at first; later reports of it are details."""
        if self._is_waiting:
            self.detail(text)
        else:
            self._is_waiting = True
            self.say(text)

    def _show(self, text: str) -> None:
        self._print("\n" * self._is_in_line + text + "\n")
        self._is_in_line = False

    def _write_log(self, text: str) -> None:
        if self.log is None:
            return
        with contextlib.suppress(OSError), self.log.open("a", encoding="utf-8") as log:
            log.write(f"{local_time_text()} {text}\n")  # on a full disk the run goes on without

    def pass_on(self, data: bytes, is_error: bool) -> None:
        """Print what a worker has printed, as it came, to standard error or standard output."""
        stream = self._stream if is_error else sys.stdout
        if is_error or (self._stream.isatty() and stream.isatty()):
            self._is_in_line = not data.endswith(b"\n")
        try:
            stream.flush()
            if hasattr(stream, "buffer"):
                stream.buffer.write(data)
            else:
                stream.write(data.decode(errors="replace"))
            stream.flush()
        except (OSError, ValueError) as error:
            self._give_up(stream, error)

    def _print(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._give_up(self._stream, error)

    def _give_up(self, stream: IO[str], error: Exception) -> None:
        """A stream is read no more, or it is a file on a full disk; the run goes on."""
        give_up_stream(stream)
        is_ours = stream is self._stream
        text = (
            f"WARNING: standard {'error' if is_ours else 'output'} cannot be written: "
            f"{getattr(error, 'strerror', None) or error}. The run continues without it; the logs "
            "have what it would have shown"
        )
        self._write_log(text)
        if not is_ours:
            self._show(text)


def tail(path: Path, *, lines_max: int = 20, bytes_max: int = 16 * 1024) -> str:
    """The last lines of a file, for an error message."""
    try:
        with open_lines(path) as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - bytes_max))
            data = file.read()
    except OSError:
        return ""
    return "\n".join(data.decode(errors="replace").rstrip().splitlines()[-lines_max:])
