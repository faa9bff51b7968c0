"""A function in fresh worker processes, with the job they join: one guard and process per rank.

The first rank that fails ends the run: its error is raised, and the others are stopped. What ranks
say goes to logs; what a rank leaves behind its guard kills, and says so.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.errors import DeadlineError, LuwuError, WorkerFailed
from luwu.base.json_file import read_json
from luwu.launch.entry import entry_arguments
from luwu.launch.processes.children import Child, kill_marked, stop_all
from luwu.launch.processes.failures import lost_worker, worker_failure
from luwu.launch.processes.guard import LEFT, MARK_SUFFIX, guarded
from luwu.launch.supervisor import STOP_PATIENCE_S, threads_per_worker, worker_environ
from luwu.testing.calls import BEFORE, load_value, rank_file, write_call
from luwu.testing.cluster import clean_environ
from luwu.testing.namespaces import Namespace, ProcService
from luwu.testing.record import Record

POLL_S: Final = 0.01
ServiceLike = ProcService | Namespace
_numbers = itertools.count()


class Call:
    """One function in its workers."""

    def __init__(
        self, record: Record, service: ServiceLike, fn: Callable[..., Any],
        args: Sequence[object], *, workers: int, timeout_s: float,
    ) -> None:  # fmt: skip
        self.name, self.workers = fn.__qualname__, workers
        self.is_settled = False
        """True if its end was waited for."""
        self._record, self._timeout_s = record, timeout_s
        self._guards: list[Child] = []
        directory = record.folder("call")
        self._owns_namespace = isinstance(service, ProcService)
        self._namespace = (
            service.namespace(directory) if isinstance(service, ProcService) else service
        )
        try:
            self._call = write_call(directory / "call", fn, args)
            record.watch_service(self._namespace.service)
            self._job = self._namespace.start(workers)
            self.run = self._job.run
            self._run_id = f"{self.run.path.name}-{os.getpid()}-{next(_numbers)}"
            self._started_ns = SYSTEM_CLOCK.now_ns()
            environ = worker_environ(
                self.run, self._run_id, connect=str(self.run.connect_file),
                threads=threads_per_worker(workers), base=clean_environ(),
            )  # fmt: skip
            for rank in range(workers):
                self._guards.append(self._start(rank, environ))
        except BaseException:
            self.stop()
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
            guarded(self._mark(rank), [sys.executable, *entry_arguments(self.run, "", script)]),
            log=self.run.log(f"guard-{rank}"),
            environ={**environ, **ranks},
        )

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
        self.is_settled = True
        try:
            self._until(lambda: all(guard.poll() is not None for guard in self._guards))
            self._raise_failure()
            ranks = range(self.workers)
            results = [load_value(rank_file(self._call, "result", rank)) for rank in ranks]
            ended = [read_json(self.run.role(f"worker-{rank}.ended")) or {} for rank in ranks]
            self._namespace.end(has_joined=any(each.get("joined") for each in ended))
            return results
        finally:
            self._drop()

    def stop(self) -> None:
        """End the workers and let go of the job, whatever they do."""
        if not self.is_settled:
            self.is_settled = True
            self._drop()

    def _drop(self) -> None:
        stop_all(self._guards, patience_s=STOP_PATIENCE_S)
        for rank, guard in enumerate(self._guards):
            kill_marked(self._mark(rank) + MARK_SUFFIX)
            for line in _read(guard.log).splitlines():
                if line.startswith(LEFT):  # it outlived the rank that started it
                    self._record.leaks.append(f"{line.removeprefix(LEFT)} of worker {rank}")
        self._namespace.abandon()
        if self._owns_namespace:
            self._record.leaks += self._namespace.drop()

    def _runs(self, rank: int) -> bool:
        """True if a worker was seen in its function."""
        where = self._where(rank)
        return bool(where) and not where.startswith(BEFORE)

    def _until(self, found: Callable[[], bool]) -> None:
        while not found():
            self._raise_failure()
            self._job.look()
            self._raise_if_late()
            sleep(POLL_S)

    def _raise_failure(self) -> None:
        """The rank that failed first; one that was killed comes before those it took along."""
        ended = [(rank, guard.poll()) for rank, guard in enumerate(self._guards)]
        failed = {rank: _signed(code) for rank, code in ended if code}
        if not failed:
            for rank, code in ended:
                if code is not None and not rank_file(self._call, "result", rank).exists():
                    raise WorkerFailed(  # the others would wait for it
                        f"worker {rank} ended well before its function returned, as sys.exit(0) "
                        "and os._exit(0) do; return from the function instead. Log "
                        f"{self.run.log(f'worker-{rank}')}"
                    )
            return
        silent = [rank for rank in failed if not self.run.error(f"worker-{rank}").exists()]
        if silent:
            raise self._lost(silent[0], failed[silent[0]])
        raise worker_failure(self.run, "", next(iter(failed.values())))

    def _lost(self, rank: int, code: int) -> LuwuError:
        log, guard_log = self.run.log(f"worker-{rank}"), self.run.log(f"guard-{rank}")
        if not log.exists() and guard_log.exists():  # it did not come as far as its own
            guard_log.rename(log)
        return lost_worker(self.run, rank, code, self._where(rank))

    def _raise_if_late(self) -> None:
        if SYSTEM_CLOCK.now_ns() - self._started_ns < self._timeout_s * 1e9:
            return
        places = [
            f"worker {rank} was here (most recent call last):\n"
            + (self._where(rank).rstrip() or "  (its function had not begun)")
            for rank, guard in enumerate(self._guards)
            if guard.poll() is None
        ]
        raise DeadlineError(
            f"the function still ran after {self._timeout_s:g} s (--luwu-timeout); logs in "
            f"{self.run.path / 'logs'}\n" + "\n".join(places)
        )

    def _where(self, rank: int) -> str:
        """What a rank was doing when it was last seen."""
        return _read(rank_file(self._call, "where", rank))

    def _mark(self, rank: int) -> str:
        return f"{self._run_id}-{rank}"


def _signed(code: int) -> int:
    """An exit code as a guard tells it; negative for a signal."""
    return 128 - code if 128 < code < 128 + signal.NSIG else code


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
