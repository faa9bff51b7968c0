"""Carries out a plan on the processes of a run, and watches the outcome.

One fault at a time: after each the run must decide two more steps (what the first needs may have
been on its way already) or come to its end, within a limit; only then the next one is due. How long
that took is counted from the kill, or from the end of a stall.

A violation is: no progress within the limit, an end that the configuration does not explain, a
fault that should have ended the run and did not, and whatever `progress` finds wrong. The processes
of other runs are safe: one is only touched if its environment bears this run's mark.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.errors import Interrupted
from luwu.base.json_file import read_json, write_json
from luwu.chaos.outlook import Outlook
from luwu.chaos.plan import Fault
from luwu.launch.processes.children import MARK, is_alive
from luwu.launch.processes.run_directory import ProcessEntry, RunDirectory
from luwu.launch.progress import Progress

POLL_S: Final = 0.02
STEPS_AFTER: Final = 2
"""Steps that must be decided after a fault: what the first needs may have been sent before it."""
FILE: Final = "chaos.json"
"""In the run directory: what was done, and how it was taken."""


@dataclass(slots=True)
class Taken:
    """A fault that happened, and what came of it."""

    fault: Fault
    pid: int
    at_step: int
    """Steps that were decided before it."""
    resumed_ns: int | None = None
    """How long until progress was seen again; None: it was not, or the run was over."""
    came: str = ""


@dataclass(slots=True)
class Verdict:
    """The outcome of all faults."""

    planned_count: int
    taken: list[Taken] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{len(self.taken)} faults, {len(self.violations)} violations"

    @property
    def missing_count(self) -> int:
        """Faults that were planned and did not happen: the run was over before."""
        return self.planned_count - len(self.taken)

    @property
    def is_good(self) -> bool:
        """True if all happened and nothing is wrong."""
        return not self.violations and not self.missing_count

    def document(self) -> dict[str, Any]:
        """For `chaos.json`."""
        return {
            "schema": 1,
            "planned_count": self.planned_count,
            "faults": [
                {
                    "kind": each.fault.kind,
                    "process": each.fault.process,
                    "pid": each.pid,
                    "at_step": each.at_step,
                    "stall_s": each.fault.stall_ns / 1e9,
                    "resumed_s": None if each.resumed_ns is None else each.resumed_ns / 1e9,
                    "came": each.came,
                }
                for each in self.taken
            ],
            "violations": self.violations,
        }


class Chaos:
    """One plan on one run."""

    def __init__(
        self, run: RunDirectory, faults: Sequence[Fault], expected: Sequence[Outlook], *,
        limit_s: float, exit_code: Callable[[], int | None], say: Callable[[str], None],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """`limit_s`: how long the run may take to go on, or to end; `exit_code`: of the run, None
        while it goes on."""
        self.verdict = Verdict(len(faults))
        self._run, self._faults, self._expected = run, tuple(faults), tuple(expected)
        self._limit_ns = int(limit_s * 1e9)
        self._exit_code, self._say, self._should_stop = exit_code, say, should_stop
        self._progress = Progress(run)
        self._stalled: list[int] = []

    def work(self) -> Verdict:
        """Do all of it; what came of it. Raises Interrupted."""
        try:
            if not self._wait(lambda: self._progress.last is not None, limited=False):
                return self._finish()
            start_ns, start_step = SYSTEM_CLOCK.now_ns(), self._progress.steps_count
            for number, (fault, outlook) in enumerate(
                zip(self._faults, self._expected, strict=True), start=1
            ):
                if not self._wait_until_due(fault, start_ns, start_step):
                    break
                self._do(number, fault, outlook)
                if self.verdict.violations:
                    break
            return self._finish()
        finally:
            self._let_go()

    def _finish(self) -> Verdict:
        self._look()
        if self.verdict.missing_count and not self.verdict.violations:
            self._say(
                f"the run was over before {self.verdict.missing_count} of "
                f"{self.verdict.planned_count} faults; give it more steps, or plan fewer"
            )
        write_json(self._run.file(FILE), self.verdict.document())
        return self.verdict

    # ---------------------------------------------------------------------- one fault

    def _do(self, number: int, fault: Fault, outlook: Outlook) -> None:
        found: list[ProcessEntry] = []

        def find() -> bool:
            found[:] = processes(self._run, fault.process)
            return bool(found)

        if not self._wait(find):
            if self._exit_code() is None:
                self._violate(f"{fault.process} was not there within {self._limit_ns / 1e9:g} s")
            return
        pid = found[0].pid
        taken = Taken(fault, pid, self._progress.steps_count)
        self.verdict.taken.append(taken)
        struck_ns = self._strike(fault, pid)
        self._see(taken, struck_ns, outlook)
        self._say(
            f"fault {number} of {len(self._faults)}: {fault.kind} {fault.process} (pid {pid}) "
            f"after {taken.at_step} steps; {taken.came}"
        )

    def _strike(self, fault: Fault, pid: int) -> int:
        """Do it; from when on the run is free to go on."""
        if fault.kind == "kill":
            struck_ns = SYSTEM_CLOCK.now_ns()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return struck_ns
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        self._stalled.append(pid)
        end_ns = SYSTEM_CLOCK.now_ns() + fault.stall_ns
        self._wait(lambda: SYSTEM_CLOCK.now_ns() >= end_ns, limited=False)
        self._let_go()
        return SYSTEM_CLOCK.now_ns()

    def _see(self, taken: Taken, struck_ns: int, outlook: Outlook) -> None:
        """Wait for what should come of it."""
        seen: list[int] = []

        def goes_on() -> bool:
            return len(seen) >= STEPS_AFTER

        def new_steps(decided: Sequence[int]) -> None:
            seen.extend(at_ns for at_ns in decided if at_ns > struck_ns)

        if outlook.ends is not None:
            if self._wait(lambda: False, ended_is_well=True):
                taken.came = f"the run ended with exit code {self._exit_code()}, as expected"
                if self._exit_code() == 0:
                    self._violate(f"{taken.fault.kind} {taken.fault.process}: the run ended well")
            else:
                taken.came = "the run went on"
                self._violate(
                    f"{taken.fault.kind} {taken.fault.process} should have ended the run: "
                    f"{outlook.ends}"
                )
            return
        if self._wait(goes_on, new_steps):
            taken.resumed_ns = seen[-1] - struck_ns
            taken.came = f"goes on {taken.resumed_ns / 1e9:.2f} s later"
        elif self._exit_code() == 0:
            taken.came = "the run came to its end"
        elif self._exit_code() is not None:
            taken.came = f"the run ended with exit code {self._exit_code()}"
            self._violate(f"{taken.fault.kind} {taken.fault.process}: {taken.came}")
        else:
            taken.came = f"no progress within {self._limit_ns / 1e9:g} s"
            self._violate(f"{taken.fault.kind} {taken.fault.process}: {taken.came}")

    def _wait_until_due(self, fault: Fault, start_ns: int, start_step: int) -> bool:
        moment = fault.moment
        if moment.step is not None:
            step = start_step + moment.step
            if not self._wait(lambda: self._progress.steps_count >= step, limited=False):
                return False
            start_ns = SYSTEM_CLOCK.now_ns()
        due_ns = start_ns + moment.delay_ns
        return self._wait(lambda: SYSTEM_CLOCK.now_ns() >= due_ns, limited=False)

    # ---------------------------------------------------------------------- looking

    def _wait(
        self, found: Callable[[], bool], new_steps: Callable[[list[int]], None] = lambda _: None,
        *, limited: bool = True, ended_is_well: bool = False,
    ) -> bool:  # fmt: skip
        """True if it was found before the run was over, or before the limit if there is one."""
        end_ns = SYSTEM_CLOCK.now_ns() + self._limit_ns
        while True:
            is_over = self._exit_code() is not None
            new_steps(self._look())
            if found():
                return True
            if is_over:
                return ended_is_well
            if self._should_stop():
                raise Interrupted("interrupted; what was stalled goes on")
            if limited and SYSTEM_CLOCK.now_ns() > end_ns:
                return False
            sleep(POLL_S)

    def _look(self) -> list[int]:
        decided = [each.at_ns for each in self._progress.look()]
        for text in self._progress.violations:
            self._violate(text)
        self._progress.violations.clear()
        return decided

    def _violate(self, text: str) -> None:
        self.verdict.violations.append(text)
        self._say(f"VIOLATION: {text}")

    def _let_go(self) -> None:
        for pid in self._stalled:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
        self._stalled.clear()


def processes(run: RunDirectory, name: str) -> list[ProcessEntry]:
    """The living processes of a name, with the mark of the run."""
    return [entry for entry in _entries(run) if _name(entry) == name and _is_ours(run, entry)]


def _entries(run: RunDirectory) -> Iterator[ProcessEntry]:
    for path in sorted(run.path.glob("processes*.json")):
        for row in (read_json(path) or {"processes": []})["processes"]:
            yield ProcessEntry(**row)


def _name(entry: ProcessEntry) -> str:
    return f"worker-{entry.rank}" if entry.role == "worker" else entry.role


def _is_ours(run: RunDirectory, entry: ProcessEntry) -> bool:
    """A number may be another process's by now; only one of this run may be touched."""
    try:
        variables = Path(f"/proc/{entry.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    mark = f"{MARK}={run.path.name}-".encode()
    return is_alive(entry.pid) and any(each.startswith(mark) for each in variables)
