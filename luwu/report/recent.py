"""The event files of a run, followed as they grow.

Of each process the latest spans are held, enough for some steps, and all instants are handed on:
a file of any length is read once, and its spans are parsed near its end only. A file that was begun
while the run is watched is found at the next `read`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from luwu.base.events import CLOCK
from luwu.base.foreign import open_lines
from luwu.base.json_file import json_object
from luwu.base.limits import LINE_BYTES_MAX
from luwu.report.event_files import EventFile, event_files

TAIL_BYTES: Final = 1 << 20
"""The spans of a file's last bytes are parsed when it is first read."""
SPANS_MAX: Final = 20_000
"""Held of each process, at most."""
NEAR: Final = 2
"""Steps before and after a chosen one whose spans may reach into it."""
STEPS_HELD: Final = 22
"""Spans of older steps are dropped."""
_SPAN_MARK: Final = b'"end_ns":'

OnInstant = Callable[["ProcessEvents", dict[str, Any]], None]


class ProcessEvents:
    """The events of one process."""

    def __init__(self, file: EventFile, around: int | None = None) -> None:
        """`around`: hold the spans near this step, not the latest."""
        self.file, self._around = file, around
        self.spans: deque[dict[str, Any]] = deque(maxlen=SPANS_MAX)
        self.starts_count = 0
        """Times the process was started."""
        self.shift_ns = 0
        """Nanoseconds from its monotonic clock to wall time."""
        self._newest = 0
        """The latest step that a span names."""
        self._boot = ""
        self._place = 0
        self._cut = b""
        """The beginning of a line whose end is not written yet."""

    def unix_ns(self, monotonic_ns: int) -> int:
        """Wall time of an instant of this process."""
        return monotonic_ns + self.shift_ns

    def read(self, on_instant: OnInstant) -> None:
        """Take in what was appended since."""
        with open_lines(self.file.path) as opened:
            is_tail = not self._place and self._around is None
            spans_from = max(0, opened.seek(0, 2) - TAIL_BYTES) if is_tail else 0
            opened.seek(self._place)
            for place, line in self._lines(opened):
                if _SPAN_MARK not in line or place >= spans_from:
                    self._take(line, on_instant)

    def _lines(self, opened: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        """New whole lines, and where each begins."""
        while data := opened.read(LINE_BYTES_MAX):
            place = self._place - len(self._cut)
            self._place += len(data)
            *lines, self._cut = (self._cut + data).split(b"\n")
            for line in lines:
                yield place, line
                place += len(line) + 1
            if len(self._cut) > LINE_BYTES_MAX:
                self._cut = b""  # no line of ours

    def _take(self, line: bytes, on_instant: OnInstant) -> None:
        record = json_object(line)
        name = record.get("name")
        if name is None:
            return  # cut short by a kill: luwu trace says so
        if name == CLOCK:
            if record["boot"] != self._boot:
                self._boot = record["boot"]
                self.shift_ns = record["unix_ns"] - record["monotonic_ns"]
            self.starts_count += 1
            record["at_ns"] = record["monotonic_ns"]
        if "end_ns" in record:
            self._hold(record)
        else:
            on_instant(self, record)

    def _hold(self, span: dict[str, Any]) -> None:
        if self._around is not None:
            if abs(span.get("step", 0) - self._around) <= NEAR:
                self.spans.append(span)
            return
        self.spans.append(span)
        self._newest = max(self._newest, span.get("step", 0))
        while self.spans[0].get("step", 0) < self._newest - STEPS_HELD:
            self.spans.popleft()


class RecentEvents:
    """The events of all processes of a run."""

    def __init__(
        self, folder: Path, on_instant: OnInstant = lambda process, record: None,
        *, around: int | None = None,
    ) -> None:  # fmt: skip
        """`around`: hold what was near this step, not the latest."""
        self._folder, self._around = folder, around
        self._on_instant = on_instant
        self._processes: dict[Path, ProcessEvents] = {}

    def read(self) -> None:
        """Take in what the processes wrote since."""
        if not any(self._folder.glob("*.jsonl")):
            return
        for file in event_files(self._folder):
            if file.path not in self._processes:
                self._processes[file.path] = ProcessEvents(file, self._around)
            self._processes[file.path].read(self._on_instant)

    def of(self, *kinds: str) -> list[ProcessEvents]:
        """LuWu's processes of these kinds, by rank."""
        found = [
            each
            for each in self._processes.values()
            if each.file.kind in kinds and not each.file.prefix
        ]
        return sorted(found, key=lambda each: (each.file.kind, each.file.rank))
