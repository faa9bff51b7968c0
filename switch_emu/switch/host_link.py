"""Counts what the network cards of this host carry, and records it as spans of its switch.

Each span has the bytes sent (`up`) and received (`down`) since the one before, of all programs of
this host, by the counts of Linux. An interface on another, as a bond, counts the same bytes again:
how the rate varies says when the link was busy, not how fast it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from luwu.base.events import LINK, Recorder

COUNTS: Final = Path("/proc/self/net/dev")
LOOK_NS: Final = 20_000_000
"""The shortest span, nanoseconds."""
_UP, _DOWN = 8, 0
"""Columns of the bytes sent and received."""


def read_counts(text: str) -> tuple[int, int]:
    """Bytes sent and received so far by all interfaces but loopback, of the text of `COUNTS`."""
    lines = (line.rpartition(":") for line in text.splitlines()[2:])
    counts = [each.split() for name, _, each in lines if name.strip() != "lo"]
    return sum(int(each[_UP]) for each in counts), sum(int(each[_DOWN]) for each in counts)


class HostLink:
    """Records spans of what the link of this host carries."""

    def __init__(self, recorder: Recorder, counts: Path = COUNTS) -> None:
        self._recorder = recorder
        self._file: Path | None = counts
        self._looked_ns = 0
        self._before = 0, 0

    def look(self, now_ns: int) -> None:
        """Record what passed since the last look, if that is long enough ago."""
        if self._file is None or now_ns - self._looked_ns < LOOK_NS:
            return
        try:
            counts = read_counts(self._file.read_text(encoding="ascii"))
        except (OSError, ValueError, IndexError) as exc:  # not of Linux: a picture lacks two rows
            self._file = None
            self._recorder.event("link.unknown", level="DEBUG", text=f"{COUNTS}: {exc}")
            return
        up, down = (now - before for now, before in zip(counts, self._before, strict=True))
        if self._looked_ns and max(up, down) > 0 <= min(up, down):  # an interface may have gone
            self._recorder.span(LINK, self._looked_ns, now_ns, up=up, down=down)
        self._looked_ns, self._before = now_ns, counts
