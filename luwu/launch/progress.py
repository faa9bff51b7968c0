"""The progress of a run, read from what its nodes write: events, lines of the log, counters."""

from __future__ import annotations

import shlex
from collections import deque
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK, Clock
from luwu.base.foreign import LogFollower
from luwu.base.json_file import json_object, read_json
from luwu.base.quantities import format_duration
from luwu.launch.processes.console import Console
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


EVERY_NS: Final = 10**9
SAMPLES_MAX: Final = 15
"""The rate is that of so many seconds."""


class ProgressLine:
    """The progress as one line of a terminal: the last decided step, steps per second, time.

    It is read once a second from the counters of the nodes, of which one may be lost, so a script
    that prints nothing is not silent. In a pipe or a file there is no such line.
    """

    def __init__(self, run: RunDirectory, console: Console, clock: Clock = SYSTEM_CLOCK) -> None:
        self._counters, self._console, self._clock = run.counters("node").parent, console, clock
        self._start_ns = clock.now_ns()
        self._next_ns = self._start_ns
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        """Instants and the number of steps decided until then."""
        self._text = ""

    def look(self) -> None:
        """Show the line; again, if something was printed in its place."""
        if not self._console.is_terminal:
            return
        now_ns = self._clock.now_ns()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + EVERY_NS
            self._sample(now_ns)
            self._text = self._line(now_ns)
        self._console.live(self._text)

    def _sample(self, now_ns: int) -> None:
        found = [read_json(path) for path in self._counters.glob("node*.json")]
        steps_count = max(
            (each["core"]["step_now"] for each in found if each is not None), default=-1
        )
        if steps_count < 0:
            return
        if steps_count == 0 or (self._samples and steps_count < self._samples[-1][1]):
            self._samples.clear()  # the rate is that of steps, not of the start or of a way back
        self._samples.append((now_ns, steps_count))

    def _line(self, now_ns: int) -> str:
        passed = format_duration((now_ns - self._start_ns) / 1e9)
        if not self._samples or self._samples[-1][1] == 0:
            return f"luwu: no step yet  {passed}"
        (first_ns, first), (last_ns, last) = self._samples[0], self._samples[-1]
        rate = ""
        if last > first:
            rate = f"{(last - first) / ((last_ns - first_ns) / 1e9):.3g} steps/s  "
        return f"luwu: step {last - 1}  {rate}{passed}"
