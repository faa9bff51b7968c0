"""The progress of a run, read from what its nodes write: events, and lines of the log."""

from __future__ import annotations

import shlex
from typing import Final

from luwu.base.foreign import LogFollower
from luwu.base.json_file import json_object
from luwu.launch.processes.run_directory import RunDirectory

_SKIPPED: Final = " WARNING node.skipped "


class Decided:
    """Counts the steps of a run that are decided, by the events of its first node.

    node.step     step=41      step 41 is decided
    node.opened   version=41   a node that was started again found 41 decided steps: if it was
                               killed between a decision and its record, one has no record
    """

    def __init__(self, run: RunDirectory) -> None:
        self._count = 0
        self._file = LogFollower(run.events("node"))

    def count(self) -> int:
        """The number of decided steps, as far as it is recorded now."""
        for line in self._file.lines():
            record = json_object(line)  # none if the node was killed in mid-line and went on in it
            if record.get("name") == "node.opened" and record["version"] is not None:
                self._count = record["version"]
            elif record.get("name") == "node.step":
                self._count = record["step"] + 1
        return self._count


class Skips:
    """Steps that were skipped as a gradient was not finite; nodes print few of them."""

    def __init__(self, run: RunDirectory) -> None:
        self._logs = run.log("node").parent
        self._files: dict[str, LogFollower] = {}
        self._said: set[str] = set()
        """The reported steps; several nodes may report one."""

    def news(self) -> list[str]:
        """Reports that are new since the last call."""
        for path in sorted(self._logs.glob("node*.log")):
            self._files.setdefault(path.name, LogFollower(path))
        return [
            text
            for file in self._files.values()
            for line in file.lines()
            if _SKIPPED in line and (text := self._report(line))
        ]

    def _report(self, line: str) -> str:
        """The report of a printed event; empty if there is nothing to report."""
        fields = dict(each.split("=", 1) for each in shlex.split(line.split(_SKIPPED, 1)[1]))
        if fields["step"] in self._said:
            return ""
        self._said.add(fields["step"])
        return (
            f"step {fields['step']} was skipped: the gradient of unit {fields['unit']} is not "
            f"finite ({fields['count']} skipped so far)"
        )
