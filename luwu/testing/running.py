"""A function in fresh worker processes: one guard and one process per rank.

The first rank that fails ends the run: its error is raised, and the others are stopped. What ranks
say goes to logs; what a rank leaves behind its guard kills, and says so (`leaks`).
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.closing import Closing
from luwu.base.errors import DeadlineError, LuwuError, WorkerFailed
from luwu.base.json_file import read_json
from luwu.launch.processes.children import Child, kill_marked, stop_all
from luwu.launch.processes.failures import lost_worker, worker_failure
from luwu.launch.processes.guard import LEFT, MARK_SUFFIX
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.service import ServiceJob
from luwu.launch.supervisor import threads_per_worker, worker_environ
from luwu.launch.torchrun import guarded_command
from luwu.testing.calls import BEFORE, load_value, member_file, result_folder, where_file
from luwu.testing.cluster import clean_environ

POLL_S: Final = 0.01
STOP_PATIENCE_S: Final = 1.2
_numbers = itertools.count()


class Running(Closing):
    """The processes that run a call."""

    def __init__(
        self, run: RunDirectory, call: Path, *, workers: int, connect: str, timeout_s: float,
        job: ServiceJob | None = None,
    ) -> None:  # fmt: skip
        """`job`: what to look at while the workers run, where it is ours."""
        self.run = run
        self.workers = workers
        self._call, self._job, self._timeout_s = call, job, timeout_s
        self._run_id = f"{run.path.name}-{os.getpid()}-{next(_numbers)}"
        self._guards: list[Child] = []
        self._started_ns = SYSTEM_CLOCK.now_ns()
        environ = worker_environ(
            run, self._run_id, connect=connect, threads=threads_per_worker(workers),
            base=clean_environ(),
        )  # fmt: skip
        try:
            for rank in range(workers):
                self._guards.append(self._start(rank, environ))
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, environ: Mapping[str, str]) -> Child:
        script = ["-m", "luwu.testing.worker", str(self._call)]
        ranks = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.workers),
            "LOCAL_WORLD_SIZE": str(self.workers),
        }
        return Child(
            f"guard-{rank}",
            guarded_command(self.run, self._mark(rank), "", script, None),
            log=self.run.log(f"guard-{rank}"),
            environ={**environ, **ranks},
        )

    @property
    def is_over(self) -> bool:
        """True if every process has ended."""
        return all(guard.poll() is not None for guard in self._guards)

    @property
    def has_joined(self) -> bool:
        """True if the workers were members of the job, so that it comes to its end."""
        return any(member_file(self._call, rank).exists() for rank in range(self.workers))

    @property
    def leaks(self) -> list[str]:
        """Processes that outlived the rank that started them."""
        return [
            f"{line.removeprefix(LEFT)} of worker {rank}"
            for rank in range(self.workers)
            for line in _lines(self.run.log(f"guard-{rank}"))
            if line.startswith(LEFT)
        ]

    def kill(self, rank: int, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a rank once its function runs, by default SIGKILL; returns its pid."""
        self._until(lambda: self._runs(rank))
        pid: int = (read_json(self.run.role(f"worker-{rank}.json")) or {})["pid"]
        os.kill(pid, number)
        return pid

    def wait_for_text(self, rank: int, text: str) -> None:
        """Return when a worker has printed a text."""
        self._until(lambda: text in _read(self.run.log(f"worker-{rank}")))

    def wait(self) -> list[Any]:
        """The function's results, by rank. Raises the first failure, DeadlineError."""
        try:
            self._until(lambda: self.is_over)
            self._raise_failure()
            return [self._result(rank) for rank in range(self.workers)]
        finally:
            self.close()

    def close(self) -> None:
        """Stop what still runs, within 2 s."""
        stop_all(self._guards, patience_s=STOP_PATIENCE_S)
        for rank in range(self.workers):
            kill_marked(self._mark(rank) + MARK_SUFFIX)

    def _runs(self, rank: int) -> bool:
        """True if a worker was seen in its function."""
        where = _read(where_file(self._call, rank))
        return bool(where) and not where.startswith(BEFORE)

    def _until(self, found: Callable[[], bool]) -> None:
        while not found():
            self._raise_failure()
            if self._job is not None:
                self._job.look()
            self._raise_if_late()
            sleep(POLL_S)

    def _raise_failure(self) -> None:
        """The rank that failed first; one that was killed comes before those it took along."""
        ended = [(rank, guard.poll()) for rank, guard in enumerate(self._guards)]
        failed = {rank: _signed(code) for rank, code in ended if code}
        if not failed:
            for rank, code in ended:
                if code is not None and not result_folder(self._call, rank).exists():
                    self._raise_without_result(rank)  # the others would wait for it
            return
        silent = [rank for rank in failed if not self.run.error(f"worker-{rank}").exists()]
        if silent:
            raise self._lost(silent[0], failed[silent[0]])
        raise worker_failure(self.run, "", next(iter(failed.values())))

    def _lost(self, rank: int, code: int) -> LuwuError:
        log, guard_log = self.run.log(f"worker-{rank}"), self.run.log(f"guard-{rank}")
        if not log.exists() and guard_log.exists():  # it did not come as far as its own
            guard_log.rename(log)
        return lost_worker(self.run, rank, code, _read(where_file(self._call, rank)))

    def _raise_if_late(self) -> None:
        if SYSTEM_CLOCK.now_ns() - self._started_ns < self._timeout_s * 1e9:
            return
        places = [
            f"worker {rank} was here (most recent call last):\n"
            + (_read(where_file(self._call, rank)).rstrip() or "  (its function had not begun)")
            for rank, guard in enumerate(self._guards)
            if guard.poll() is None
        ]
        raise DeadlineError(
            f"the function still ran after {self._timeout_s:g} s (--luwu-timeout); logs in "
            f"{self.run.path / 'logs'}\n" + "\n".join(places)
        )

    def _result(self, rank: int) -> Any:
        return load_value(result_folder(self._call, rank))

    def _raise_without_result(self, rank: int) -> None:
        log = self.run.log(f"worker-{rank}")
        raise WorkerFailed(
            f"worker {rank} ended well before its function returned, as sys.exit(0) and "
            f"os._exit(0) do; return from the function instead. Log {log}"
        )

    def _mark(self, rank: int) -> str:
        return f"{self._run_id}-{rank}"


def _signed(code: int) -> int:
    """An exit code as a guard tells it; negative for a signal."""
    return 128 - code if 128 < code < 128 + signal.NSIG else code


def _lines(file: Path) -> list[str]:
    return _read(file).splitlines()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
