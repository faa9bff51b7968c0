"""Events of a process: one line for people, one JSON line for programs, the same fields.

    12:00:03.214 INFO node.step step=41 chunk_count=768 read_s=0.412 update_s=0.388

`Recorder.event` marks an instant (at_ns in the file), `Recorder.span` a stretch of work (start_ns,
end_ns; all of the monotonic clock) and whatever names it: step, unit, extent. INFO is for once a
step or rarer and is printed; DEBUG is for extents and goes to the file alone. A `Recorder` with no
file only prints, and so does one whose file cannot be written any more. Records wait in a buffer
until an INFO event, the first record a second after the last flush, `flush`, the end of the
interpreter or `flush_all`: a process that is killed by SIGKILL loses what it recorded since.

The first record of each start of a process is its clock: an instant of the monotonic clock, the
same instant of the wall clock, and which boot of which host the monotonic clock belongs to.

    {"name":"clock","role":"node","monotonic_ns":...,"unix_ns":...,"boot":"6f9c..."}

Records name an extent by its number. What it is of is recorded once by each start of a node: units
with their extents' count, in order.

    {"name":"node.about","units":[["root",3],["blocks.0",2]]}
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import IO, Final

from luwu.base.clock import SYSTEM_CLOCK, local_time_text, unix_ns
from luwu.base.closing import Closing
from luwu.base.expendable import Expendable, print_if_possible

CLOCK: Final = "clock"
"""Name of the record that a timeline is aligned by."""
NODE_ABOUT: Final = "node.about"
"""Name of the record of a node's units."""
JOB_OVER: Final = "job.over"
"""Name of the record of a switch or node whose job is over, before it writes its results."""
LINK: Final = "link"
"""Name of the span of what the network cards of a host carried."""
SCALARS: Final = "scalars"
"""Name of the record of what a script recorded with `luwu.log`."""
_BUFFER_BYTES: Final = 64 * 1024
"""The most DEBUG records that a killed process may lose."""
_FLUSH_NS: Final = 10**9
"""Older records than this reach the file with the next one, so that a run can be watched."""

_encode: Final = json.JSONEncoder(separators=(",", ":")).encode

_open: Final[weakref.WeakSet[Recorder]] = weakref.WeakSet()
"""Recorders of this process that write a file."""


def flush_all() -> None:
    """Flush the records of this process; also in a signal handler."""
    for recorder in list(_open):
        with contextlib.suppress(RuntimeError):  # the handler interrupted a write
            recorder.flush()


atexit.register(flush_all)  # a script at module level never closes its recorder


class Recorder(Closing):
    """Writes a process's events; safe to use from several threads."""

    def __init__(
        self, *, role: str, path: Path | None = None, printed: IO[str] | None = sys.stderr,
        least: str = "INFO",
    ) -> None:  # fmt: skip
        """`least`: what is printed, INFO or only WARNING."""
        self._role = role
        self._silent = ("DEBUG",) if least == "INFO" else ("DEBUG", "INFO")
        self._lock = threading.RLock()  # a signal handler may hold it already
        self._pid = os.getpid()
        self._printed = printed
        self._file: IO[str] | None = None
        self._path = Path()
        self._flushed_ns = 0
        if path is not None:
            self._path = path
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("a", encoding="utf-8", buffering=_BUFFER_BYTES)
            except OSError as exc:
                self._give_up(exc)
            now = {"monotonic_ns": SYSTEM_CLOCK.now_ns(), "unix_ns": unix_ns(), "boot": _boot()}
            self._append({"name": CLOCK, "role": role, **now})
            _open.add(self)

    def event(self, name: str, *, level: str = "INFO", **fields: object) -> None:
        """Record an instant; print it unless it is DEBUG."""
        if level not in self._silent and self._printed is not None:
            text = " ".join(f"{key}={_short(value)}" for key, value in fields.items())
            with self._lock:
                line = f"{local_time_text()} {level} {name} {text}".rstrip()
                print_if_possible(line, self._printed)
        self._append({"name": name, "role": self._role, "at_ns": SYSTEM_CLOCK.now_ns(), **fields})
        if level != "DEBUG":
            self.flush()

    def span(self, name: str, start_ns: int, end_ns: int, **fields: object) -> None:
        """Record a stretch of work in the file."""
        if self._file is None:
            return
        self._append(
            {"name": name, "role": self._role, "start_ns": start_ns, "end_ns": end_ns, **fields}
        )
        if end_ns - self._flushed_ns > _FLUSH_NS:
            self._flushed_ns = end_ns
            self.flush()

    def flush(self) -> None:
        """Hand buffered lines to the operating system; a fork leaves them to its parent."""
        with self._lock:
            if self._file is not None and self._pid == os.getpid():
                try:
                    self._file.flush()
                except OSError as exc:
                    self._give_up(exc)

    def close(self) -> None:
        """Flush and close the file; later events are printed only."""
        with self._lock:
            if self._file is not None:
                try:
                    self._file.close()
                except OSError as exc:
                    self._give_up(exc)
                self._file = None

    def _append(self, record: dict[str, object]) -> None:
        if self._file is None:
            return
        line = _encode(record)
        with self._lock:
            if self._file is not None:
                try:
                    self._file.write(line + "\n")
                except OSError as exc:
                    self._give_up(exc)

    def _give_up(self, error: OSError) -> None:
        """No file from now on: events are not worth a run."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()  # tries to write what is left, in vain
        Expendable(lambda text: print_if_possible(text, self._printed)).give_up(self._path, error)


def _boot() -> str:
    """Names the boot of this host: processes with the same one share the monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return json.dumps(text) if " " in text or not text.isprintable() else text
