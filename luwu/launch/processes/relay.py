"""The output of worker 0, passed on as it arrives: a progress bar moves, streams stay apart.

Worker 0 writes to two files, `logs/worker-0.out` and `.err`, if they are there when it starts. What
is new in them goes on as bytes, whole lines or not, and to `logs/worker-0.log` behind what came
before, where people look for both. The two files are removed at the end. Other workers write to
their logs alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from luwu.base.closing import Closing
from luwu.launch.processes.run_directory import RunDirectory

OUT: Final = ".out"
ERR: Final = ".err"

Sink = Callable[[bytes, bool], None]
"""Takes bytes, and whether they came from standard error."""


def stream_files(run: RunDirectory, process: str) -> tuple[Path, Path]:
    """The files of a worker's standard output and standard error, if they exist."""
    log = run.log(process)
    return log.with_suffix(OUT), log.with_suffix(ERR)


class Relay(Closing):
    """Follows the two streams of one worker."""

    def __init__(self, run: RunDirectory, process: str, sink: Sink) -> None:
        """Make the files; the worker is started after."""
        self._log, self._sink = run.log(process), sink
        self._files = stream_files(run, process)
        self._offsets = [0, 0]
        with contextlib.suppress(OSError):  # a full disk: then both streams go to the log alone
            self._log.touch()
            for file in self._files:
                file.write_bytes(b"")

    def look(self) -> None:
        """Pass on what came since the last time."""
        for index, file in enumerate(self._files):
            try:
                with file.open("rb") as opened:
                    opened.seek(self._offsets[index])
                    data = opened.read()
            except OSError:
                continue
            if data:
                self._offsets[index] += len(data)
                with contextlib.suppress(OSError), self._log.open("ab") as log:
                    log.write(data)
                self._sink(data, index == 1)

    def close(self) -> None:
        """Pass on the rest and remove the files."""
        self.look()
        for file in self._files:
            file.unlink(missing_ok=True)


class ByLine:
    """A sink that hands on whole lines of both streams."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rests = [b"", b""]

    def __call__(self, data: bytes, is_error: bool) -> None:
        """Hand on the lines that are complete; what is left waits."""
        *lines, self._rests[is_error] = (self._rests[is_error] + data).split(b"\n")
        for line in lines:
            self._on_line(line.decode(errors="replace"))

    def end(self) -> None:
        """Hand on what is left, line or not."""
        for index, rest in enumerate(self._rests):
            if rest:
                self._on_line(rest.decode(errors="replace"))
                self._rests[index] = b""
