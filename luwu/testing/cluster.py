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

import contextlib
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
from luwu.base.errors import ConfigError, DeadlineError, LuwuError, WorkerFailed
from luwu.base.json_file import read_json
from luwu.base.socket_directory import PREFIX
from luwu.base.torch_import import PRELOAD
from luwu.launch.processes.children import is_alive, kill_marked, marked_processes
from luwu.launch.processes.console import tail
from luwu.launch.processes.failures import error_of_code
from luwu.launch.processes.guard import LEFT, MARK_SUFFIX
from luwu.launch.processes.run_directory import ProcessEntry, RunDirectory
from luwu.launch.progress import Decided
from luwu.testing.calls import load_value, result_file
from luwu.testing.record import once, written_tracebacks

POLL_S = 0.02
STOP_S = 4.0
"""Time for the launcher to end what it started, which takes it 2 s."""
ANSWER_S = 1.0
"""Time for a worker to write where it is."""
SOURCE = Path(luwu.__file__).resolve().parents[1]


def clean_environ() -> dict[str, str]:
    """An environment that leads to this luwu, and says nothing of a run that we are in."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LUWU_") or k == PRELOAD}
    return {**clean, "PYTHONPATH": path}


class Cluster(Closing):
    """One `luwu` command and the processes it started."""

    call: Path | None = None
    """The call that its workers make, if they run a function."""
    workers = 0
    """The number of workers that make it."""
    _has_returned = False

    def __init__(
        self, directory: Path, arguments: Sequence[str], *,
        environ: Mapping[str, str] | None = None, name: str = "run", cwd: Path | None = None,
    ) -> None:  # fmt: skip
        """Run `luwu ARGUMENTS` in `cwd`, or `directory`; its run directory is `directory/name`."""
        self.run_directory = RunDirectory(directory / name)
        self._output = directory / f"{name}.out"
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "luwu.testing.leash", *arguments],
                stdin=subprocess.PIPE,  # at its end the launcher stops, so it ends with us
                stdout=output, stderr=output, cwd=cwd or directory, start_new_session=True,
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
        environ: Mapping[str, str] | None = None, name: str = "run", cwd: Path | None = None,
    ) -> Self:  # fmt: skip
        """`luwu run FLAGS SCRIPT ...` with a run directory below `directory`."""
        arguments = ["run", "--run-dir", str(directory / name), *flags, *script]
        return cls(directory, arguments, environ=environ, name=name, cwd=cwd)

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
                raise DeadlineError(
                    f"waited {limit_s:.0f} s for {what}:\n{self.told}\n{self._log_tails()}"
                )
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
        code: int = self.until(self.exit_code, "luwu to end", limit_s=limit_s)
        return code

    def returned(self, limit_s: float = 120) -> list[Any]:
        """What the function of `luwu_cluster` returned, by rank, once `luwu run` has ended well.

        Raises: the first failure, with that worker's traceback in its message; DeadlineError.
        """
        if self.call is None:
            raise ConfigError("this cluster runs a script, which returns nothing; see results()")
        code = self.until(self._code_of_call, "the function to return", limit_s=limit_s)
        files = [result_file(self.call, rank) for rank in range(self.workers)]
        # `luwu run` refuses a script that joins no job; a function may do without one.
        if code and not (self._has_no_member() and all(file.exists() for file in files)):
            raise self._failure()
        self._has_returned = True
        return [load_value(file) for file in files]

    def _has_no_member(self) -> bool:
        """True if each worker is done, and none has joined the job."""
        roles = (self.run_directory.role(f"worker-{rank}.ended") for rank in range(self.workers))
        return all((read_json(file) or {}).get("joined") is False for file in roles)

    def _code_of_call(self) -> int | None:
        """The exit code. Raises WorkerFailed if a rank is done whose function has not returned."""
        assert self.call is not None
        code, run = self.exit_code(), self.run_directory
        for rank in range(self.workers):
            process = f"worker-{rank}"
            is_done = code == 0 or run.role(f"{process}.ended").exists()
            said = (result_file(self.call, rank), run.error(process))  # written before
            if is_done and not any(file.exists() for file in said):
                raise WorkerFailed(  # the others would wait for it
                    f"worker {rank} ended well before its function returned, as sys.exit(0) and "
                    f"os._exit(0) do; return from the function instead. Log {run.log(process)}"
                )
        return code

    def _failure(self) -> LuwuError:
        """The error that `luwu run` has ended with, as its records or its output have it."""
        found = read_json(self.run_directory.file("outcome.json"))
        if found is None:  # refused before there was a run
            return error_of_code(self.exit_code() or 0, self.told)
        return error_of_code(found["exit_code"], found["reason"], found["code"])

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

    def left_by_workers(self) -> list[str]:
        """Processes that workers started and that outlived them, if the run ended well."""
        log = self.run_directory.log("workers")
        if not ((self._has_returned or self.exit_code() == 0) and log.exists()):
            return []
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line.removeprefix(LEFT) for line in lines if line.startswith(LEFT)]

    def close(self) -> None:
        """Stop what still runs, or kill it."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        for mark in self._marks:
            kill_marked(mark)

    def _log_tails(self) -> str:
        """The last lines of all logs; workers that run a function write there where it is."""
        logs = sorted((self.run_directory.path / "logs").glob("*.log"))
        asked = self.processes() if self.call is not None else []
        waiting = {self.run_directory.log(each.name) for each in asked if each.role == "worker"}
        for each in asked:
            with contextlib.suppress(ProcessLookupError):
                if each.role == "worker":
                    os.kill(each.pid, signal.SIGUSR2)
        end_ns = SYSTEM_CLOCK.now_ns() + int(ANSWER_S * 1e9)
        while waiting and SYSTEM_CLOCK.now_ns() < end_ns:
            waiting = {log for log in waiting if "(most recent call first)" not in _tail(log)}
            sleep(POLL_S)
        return "\n".join(f"--- {log.name}\n{_tail(log)}" for log in logs)


def _tail(log: Path) -> str:
    """The last lines of a log; of a worker's, all that say where it is."""
    return tail(log, lines_max=60 if log.name.startswith("worker-") else 8)
