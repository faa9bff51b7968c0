"""Files of a run as its processes write them, made without any process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from luwu.base.events import CLOCK

MS = 1_000_000


class Written:
    """Event files of a run of two workers whose step takes 100 ms."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("worker-0", "worker-1", "switch", "node"):
            self.clock(name)

    @classmethod
    def appending(cls, folder: Path) -> Written:
        """The same files, which were begun."""
        found = cls.__new__(cls)
        found.folder = folder
        return found

    def clock(self, name: str) -> None:
        """A start of a process."""
        self.append(name, {"name": CLOCK, "monotonic_ns": 0, "unix_ns": 10**9, "boot": "b"})

    def append(self, name: str, record: dict[str, Any], end: str = "\n") -> None:
        """A record at the end of a file."""
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(record, separators=(",", ":")) + end)

    def span(self, name: str, what: str, step: int, start_ms: float, end_ms: float) -> None:
        """A span of a step; times in it."""
        start_ns, end_ns = (100 * MS * step + int(ms * MS) for ms in (start_ms, end_ms))
        record = {"name": what, "start_ns": start_ns, "end_ns": end_ns, "step": step}
        self.append(name, record)

    def step(self, step: int) -> None:
        """A whole step; worker 1 computes longer."""
        for rank, ends_ms in enumerate((70, 90)):
            worker = f"worker-{rank}"
            self.span(worker, "pull_wait", step, 0, 10)
            self.span(worker, "forward", step, 10, 30)
            self.span(worker, "backward", step, 30, ends_ms)
        self.span("switch", "sum", step, 80, 81)
        self.span("node", "update", step, 81, 90)
        self.span("node", "write", step, 85, 95)
        at_ns = 100 * MS * (step + 1)
        self.append("node", {"name": "node.step", "at_ns": at_ns, "step": step, "applied": True})
