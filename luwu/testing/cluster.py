"""Whole clusters of real processes for tests: start one, kill a part, see how it ends.

    with Cluster.run(tmp_path, "train.py", "--steps", "5", flags=["--workers", "2"]) as cluster:
        cluster.wait_for("worker", rank=1)
        cluster.kill("switch")
        cluster.suspend("worker", 1)
        cluster.resume("worker", 1)
        assert cluster.wait(60) == 0
    assert cluster.leftovers() == []

A `Cluster` is one `luwu` command in a session of its own; what it tells comes from its run
directory, as a user would see it. Nothing here sleeps to synchronise: waits poll, with a deadline
that says what was waited for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import luwu
from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.closing import Closing
from luwu.base.errors import ConfigError, DeadlineError
from luwu.base.socket_directory import PREFIX
from luwu.launch.processes.children import is_alive, kill_marked, marked_processes
from luwu.launch.processes.console import tail
from luwu.launch.processes.failures import error_of_code
from luwu.launch.processes.guard import MARK_SUFFIX
from luwu.launch.processes.run_directory import ProcessEntry, RunDirectory
from luwu.launch.progress import Decided
from luwu.testing.calls import load_value, rank_file
from luwu.testing.record import once, written_tracebacks

POLL_S = 0.02
SOURCE = Path(luwu.__file__).resolve().parents[1]


def clean_environ() -> dict[str, str]:
    """An environment that leads to this luwu, and says nothing of a run that we are in."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    clean = {key: text for key, text in os.environ.items() if not key.startswith("LUWU_")}
    return {**clean, "PYTHONPATH": path}


class Cluster(Closing):
    """One `luwu` command and the processes it started."""

    call: Path | None = None
    """The call that its workers make, if they run a function."""

    def __init__(
        self, directory: Path, arguments: Sequence[str], *,
        environ: Mapping[str, str] | None = None, name: str = "run",
    ) -> None:  # fmt: skip
        """Run `luwu ARGUMENTS` in `directory`; its run directory must be `directory/name`."""
        self.run_directory = RunDirectory(directory / name)
        self._output = directory / f"{name}.out"
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "luwu.testing.leash", *arguments],
                stdin=subprocess.PIPE,  # at its end the launcher stops, so it ends with us
                stdout=output, stderr=output, cwd=directory, start_new_session=True,
                env={**clean_environ(), **(environ or {})},
            )  # fmt: skip
        self.pid = self._process.pid
        """The launcher's process number."""
        self._marks = [
            f"{self.run_directory.path.name}-{self.pid}{end}" for end in ("", MARK_SUFFIX)
        ]

    @classmethod
    def run(
        cls, directory: Path, *script: str, flags: Sequence[str] = (),
        environ: Mapping[str, str] | None = None, name: str = "run",
    ) -> Self:  # fmt: skip
        """`luwu run FLAGS SCRIPT ...` with a run directory below `directory`."""
        arguments = ["run", "--run-dir", str(directory / name), *flags, *script]
        return cls(directory, arguments, environ=environ, name=name)

    @property
    def output(self) -> str:
        """The launcher's output so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    @property
    def told(self) -> str:
        """The same with each worker's traceback once, for a message."""
        return once(self.output, written_tracebacks(self.run_directory.path))

    def processes(self) -> list[ProcessEntry]:
        """The run's processes, as `processes.json` says."""
        return self.run_directory.read_processes()

    def find(self, role: str, rank: int = 0) -> ProcessEntry | None:
        """A process that is alive."""
        for entry in self.processes():
            if (entry.role, entry.rank) == (role, rank) and is_alive(entry.pid):
                return entry
        return None

    def wait_for(self, role: str, rank: int = 0, *, but: int = 0, limit_s: float = 60) -> int:
        """The process number of a role once it is alive and is not `but`."""

        def found() -> int | None:
            entry = self.find(role, rank)
            return entry.pid if entry is not None and entry.pid != but else None

        return self.until(found, f"{role} {rank} to be alive", limit_s=limit_s)

    def wait_for_text(self, text: str, *, log: str | None = None, limit_s: float = 60) -> None:
        """Return when the launcher, or a process's log, has printed a text."""

        def found() -> bool | None:
            if log is None:
                return text in self.output or None
            path = self.run_directory.log(log)
            return (path.exists() and text in path.read_text(errors="replace")) or None

        self.until(found, f"{text!r} in the output of {log or 'the launcher'}", limit_s=limit_s)

    def until(self, found: Callable[[], Any], what: str, *, limit_s: float = 60) -> Any:
        """Poll until something is found. Raises DeadlineError."""
        end_ns = SYSTEM_CLOCK.now_ns() + int(limit_s * 1e9)
        while (value := found()) is None:
            if self._process.poll() is not None:
                value = found()
                if value is not None:
                    break
                raise DeadlineError(f"luwu ended before {what}:\n{self.told}")
            if SYSTEM_CLOCK.now_ns() > end_ns:
                raise DeadlineError(f"waited {limit_s:.0f} s for {what}:\n{self.told}")
            sleep(POLL_S)
        return value

    def kill(self, role: str, rank: int = 0, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a role, by default SIGKILL; returns its process number."""
        pid = self.wait_for(role, rank)
        os.kill(pid, number)
        return pid

    def suspend(self, role: str, rank: int = 0) -> int:
        """Stop a role where it is (SIGSTOP), until `resume`; its process number."""
        return self.kill(role, rank, signal.SIGSTOP)

    def resume(self, role: str, rank: int = 0) -> int:
        """Let a suspended role go on (SIGCONT); its process number."""
        return self.kill(role, rank, signal.SIGCONT)

    def wait_for_steps(self, count: int, *, limit_s: float = 60) -> int:
        """Return when so many steps are decided; how many are."""
        decided = Decided(self.run_directory)

        def found() -> int | None:
            known = decided.count()
            return known if known >= count else None

        steps: int = self.until(found, f"{count} decided steps", limit_s=limit_s)
        return steps

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the launcher alone."""
        self._process.send_signal(number)

    def exit_code(self) -> int | None:
        """The launcher's exit code; None while it runs."""
        return self._process.poll()

    def wait(self, limit_s: float = 120) -> int:
        """The launcher's exit code. Raises DeadlineError."""
        try:
            return self._process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired as exc:
            raise DeadlineError(
                f"luwu still ran after {limit_s:.0f} s:\n{self.output}\n{self._log_tails()}"
            ) from exc

    def returned(self, limit_s: float = 120) -> list[Any]:
        """What the function of `luwu_cluster` returned, by rank, once `luwu run` has ended well.

        Raises: WorkerFailed, or the error of the exit code, if it has not.
        """
        if self.call is None:
            raise ConfigError("this cluster runs a script, which returns nothing; see results()")
        code = self.wait(limit_s)
        if code != 0:
            raise error_of_code(code, f"luwu run ended with exit code {code}:\n{self.told}")
        count = len(list(self.call.parent.glob("result-*")))
        return [load_value(rank_file(self.call, "result", rank)) for rank in range(count)]

    def results(self) -> dict[str, Any]:
        """The files of `results/`, by name."""
        folder = self.run_directory.path / "results"
        return {
            path.name: json.loads(path.read_text(encoding="utf-8"))
            for path in sorted(folder.glob("*.json"))
        }

    def leftovers(self) -> list[str]:
        """Processes and sockets of this run that are still there: none after its end (I8)."""
        found = [f"process {pid}" for mark in self._marks for pid in marked_processes(mark)]
        for parent in {Path("/tmp"), Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")}:
            found += [str(path) for path in parent.glob(f"{PREFIX}{self.pid}-*")]
        found += [  # os.walk passes over a directory that is removed meanwhile
            str(Path(folder, name))
            for folder, _, names in os.walk(self.run_directory.path)
            for name in names
            if name.endswith(".partial")
        ]
        return found

    def wait_until_clean(self, limit_s: float = 5) -> list[str]:
        """Leftovers after `limit_s`; returns as soon as there are none."""
        end_ns = SYSTEM_CLOCK.now_ns() + int(limit_s * 1e9)
        while (found := self.leftovers()) and SYSTEM_CLOCK.now_ns() < end_ns:
            sleep(POLL_S)
        return found

    def close(self) -> None:
        """Kill whatever still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        for mark in self._marks:
            kill_marked(mark)

    def _log_tails(self) -> str:
        logs = sorted((self.run_directory.path / "logs").glob("*.log"))
        return "\n".join(f"--- {log.name}\n{tail(log, lines_max=8)}" for log in logs)
