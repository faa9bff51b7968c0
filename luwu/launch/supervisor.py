"""Starts the processes of a run on this host, watches them, and leaves nothing behind.

starting   node, then switch: each reports where it listens     -> `serve` returns, connect.json
training   an agent under its guard, one worker a rank       -> `train`, then `wait`
ending     all workers have left; node and switch end too    -> `wait` returns
closed     everything is stopped within 2 s                  -> `close`, whatever happened

a switch or node died      started again on the same state and endpoint, `restarts` times in all;
                           as the job ends, a node without results alone, only to write them
a node that others replace the run goes on without it (--replicas), once the switch has left it out
it refused its input       the run ends with its message (exit codes 2, 3, 5)
a worker was lost          the run ends with its traceback (exit code 4, or the error's own)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.closing import Closing
from luwu.base.errors import ConfigError, DeadlineError, Interrupted, StateError
from luwu.base.foreign import LogFollower
from luwu.base.json_file import read_json, remove_partial
from luwu.base.socket_directory import remove_directory
from luwu.launch.agent import SAYS, Share, own_agent_command
from luwu.launch.attendance import Attendance
from luwu.launch.entry import entry_arguments
from luwu.launch.nodes import Replicas, is_node
from luwu.launch.processes.children import (
    MARK,
    WORKER_TUNABLES,
    Child,
    DiskBytes,
    MemorySampler,
    exit_text,
    kill_marked,
    stop_all,
)
from luwu.launch.processes.console import Console
from luwu.launch.processes.failures import FINAL_CODES, role_failure, worker_failure
from luwu.launch.processes.guard import MARK_SUFFIX, guarded
from luwu.launch.processes.relay import Relay, Sink
from luwu.launch.processes.run_directory import ProcessEntry, RunDirectory
from luwu.launch.progress import Skips
from luwu.launch.roles import POLL_S, RoleProcess, wait_until_listens

STOP_PATIENCE_S: Final = 1.2
"""From the request to stop until the kill: all is over within 2 s."""
MEMORY_EVERY_NS: Final = 10**9
"""Between two records of the memory that processes take."""
ENDING_S: Final = 60.0
"""Time for the node to end after the last worker."""
OVER_NS: Final = 2 * 10**9
"""Time for workers, switches and nodes to tell each other that all have left, before we do."""
SPIN_COUNT: Final = "10000"
"""The time that a waiting compute thread keeps its core. GNU OpenMP's own 300,000 made a
step 20 times longer when two other processes wanted the two cores; this costs 5 % alone."""


class Supervisor(Closing):
    """The processes of one run on this host. Use it as a context manager."""

    def __init__(
        self, run: RunDirectory, console: Console, *, restarts_max: int = 3,
        should_stop: Callable[[], bool] = lambda: False, connect_timeout_s: float = 60.0,
        prefix: str = "", records: str = "processes.json",
    ) -> None:  # fmt: skip
        self.run = run
        self.run_id = f"{run.path.name}-{os.getpid()}"
        self.private_directory: Path | None = None
        """Holds the sockets; removed at the end, by the roles if we are killed."""
        self.worker_environ: dict[str, str] = {}
        """Variables of the workers' environment beside those of all processes."""
        self.watch: list[Callable[[], object]] = []
        """Called each time that the processes are looked at."""
        self._console = console
        self._restarts_left = restarts_max
        self._should_stop = should_stop
        self._connect_timeout_s = connect_timeout_s
        self._prefix = prefix
        self._records = records
        self._roles: list[RoleProcess] = []
        self._finished: set[str] = set()
        """Roles that died when the job was over, with nothing left to do."""
        self._replicas = Replicas(1, 1)
        self._guard: Child | None = None
        """The guard of the workers."""
        self._attendance: Attendance | None = None
        self._skips = Skips(run)
        self._are_workers_done = False
        self._over_ns: int | None = None
        """Since when all workers are known to have left."""
        self._relay: Relay | None = None
        self._written: list[ProcessEntry] = []
        self.sampler = MemorySampler()
        self._memory_due_ns = 0

    # ---------------------------------------------------------------------- starting

    def add_role(self, role: str, spec: dict[str, Any]) -> str:
        """Start the switch or the node and wait until it listens; its endpoint.

        What dies meanwhile is started again, as later. Raises: the role's own error,
        ConnectionFailed when it says nothing for too long.
        """
        process = RoleProcess(
            self.run, role, spec, run_id=self.run_id, private_directory=self.private_directory,
        )  # fmt: skip
        process.start()
        self._roles.append(process)
        self._write_processes()

        def look() -> None:
            self._raise_if_stopped()
            for each in self._roles:  # those that listen already may die too
                self._look_at_role(each, is_starting=True)
            if process.child.poll() == 0:  # what failed is started again, now or at the next look
                raise role_failure(self.run, role, 0, process.error())

        ready = wait_until_listens(
            role,
            self.run.log(role),
            ready=process.ready,
            look=look,
            timeout_s=self._connect_timeout_s,
        )
        self._write_processes()
        for line in ready["lines"]:
            self._console.detail(f"{role}: {line}")
        assert process.endpoint is not None
        return process.endpoint

    def train(
        self, script: Sequence[str], *, share: Share, connect: str | None,
        sink: Sink, alone: bool = False, threads: int | None = None,
        restarts_max: int = 0, on_loss: str = "stop", when: Path | None = None,
    ) -> None:  # fmt: skip
        """Start the workers on a script; `alone` starts one process without an agent.

        `share`: the workers of this host. `restarts_max`: times workers are started again because
        one was lost: all, or where `on_loss` is not stop, that one. `sink` gets what rank 0 prints,
        if it is on this host. `when`: the file whose appearance lets an agent begin them.
        """
        workers = 1 if alone else len(share.ranks)
        environ = worker_environ(
            self.run, self.run_id, connect=connect, threads=threads or threads_per_worker(workers)
        )
        environ |= self.worker_environ
        for pattern in (f"errors/{self._prefix}worker-*", f"roles/{self._prefix}worker-*"):
            for stale in self.run.path.glob(pattern):
                stale.unlink()
        self._attendance = None if connect is None else Attendance(self.run, self._prefix)
        if alone:
            command = [sys.executable, *entry_arguments(self.run, self._prefix, script)]
        else:
            agent = own_agent_command(
                self.run, self._prefix, share, policy=on_loss, restarts=restarts_max, when=when
            )
            command = [*agent, *script]
        self._relay = Relay(self.run, f"{self._prefix}worker-0", sink)
        name = f"{self._prefix}workers"
        self._agent = LogFollower(self.run.log(name), from_end=True)
        """The reports of the starter of workers."""
        self._guard = Child(
            name, guarded(self.run_id, command), log=self.run.log(name), environ=environ
        )

    def expect_replicas(self, optimizer_nodes: int, replicas: int) -> None:
        """Several optimizer nodes hold each page: the run goes on without one that is lost."""
        self._replicas = Replicas(optimizer_nodes, replicas)

    # ---------------------------------------------------------------------- watching

    def wait(self) -> None:
        """Return when the job is done and every process has ended. Raises what went wrong."""
        while not (self.poll() and self.roles_done):
            if self._are_workers_done:
                assert self._over_ns is not None
                if SYSTEM_CLOCK.now_ns() > self._over_ns + int(ENDING_S * 1e9):
                    running = [each.role for each in self._roles if not self._has_ended(each)]
                    raise DeadlineError(
                        f"{' and '.join(running)} did not end within {ENDING_S:.0f} s of the last "
                        f"worker; their logs are in {self.run.path / 'logs'}"
                    )
            sleep(POLL_S)

    def poll(self) -> bool:
        """Look at everything once; whether the workers are done. Raises what went wrong."""
        self._raise_if_stopped()
        for role in self._roles:
            self._look_at_role(role)
        was_done, done = self._are_workers_done, self._look_at_workers()
        self._are_workers_done = done
        self._end_roles()
        self._write_processes()
        if SYSTEM_CLOCK.now_ns() >= self._memory_due_ns or done > was_done:
            self._write_memory()
            for line in self._skips.news():
                self._console.say(line)
        for look in self.watch:
            look()
        return done

    @property
    def roles_done(self) -> bool:
        """True if every role has ended."""
        return all(self._has_ended(role) for role in self._roles)

    def kernel_disk_bytes(self) -> DiskBytes | None:
        """The kernel's count for all nodes, over all their starts."""
        found = [each.disk for each in self._roles if is_node(each.role)]
        if not found:
            return None
        return DiskBytes(sum(disk.read for disk in found), sum(disk.written for disk in found))

    def _look_at_role(self, role: RoleProcess, *, is_starting: bool = False) -> None:
        """Start a role again that died; while roles are starting, no state is lost with one."""
        child = role.child
        code = child.poll()
        if code is None:
            child.note_disk()
            if role.ready() is not None and self._restarts_left and role.is_restartable:
                role.keep_spare()
            return
        if code == 0 or self._replicas.is_lost(role.role):
            return
        document = role.error()
        is_over = not is_starting and self._is_over(role)
        is_final = code in FINAL_CODES or (self._restarts_left == 0 and not is_over)
        if not is_starting and is_final and self._replicas.lose(role.role, document.get("code")):
            why = document.get("message") or exit_text(code)
            self._console.say(
                f"{role.role} is lost ({why}); the run goes on without it, as other nodes hold its "
                f"pages. Log {self.run.log(role.role)}"
            )
            return
        if code in FINAL_CODES:
            raise role_failure(self.run, role.role, code, document)
        if is_over and not role.is_for_results:
            self._finish_role(role, code)
            return
        if not is_starting and not role.is_restartable:
            raise StateError(
                f"the node ended with {exit_text(code)}, and the state it kept in RAM is lost; "
                f"give a directory with --state. Log {self.run.log(role.role)}",
                code="E503",
            )
        if self._restarts_left == 0:
            raise role_failure(
                self.run, role.role, code, document, "; no restarts are left (--restarts)"
            )
        self._restarts_left -= 1
        old_pid = child.pid
        new = role.start()
        self._console.say(
            f"{role.role} (pid {old_pid}) ended with {exit_text(code)}; started again as pid "
            f"{new.pid} on the same state, {self._restarts_left} restarts left"
        )

    def _is_over(self, dead: RoleProcess | None = None) -> bool:
        """True if all workers have left: they have ended, or recorded it, or a switch or node has
        ended well. `dead`: one that has died; records are looked at for its sake."""
        roles, attendance = self._roles, self._attendance
        if self._over_ns is None and (
            self._are_workers_done
            or any(each.child.poll() == 0 for each in roles)
            or (dead is not None and any(each.saw_job_over for each in roles))
            or (attendance is not None and attendance.have_left(is_new=dead is not None))
        ):
            self._over_ns = SYSTEM_CLOCK.now_ns()
        return self._over_ns is not None

    def _finish_role(self, role: RoleProcess, code: int) -> None:
        """A switch or node died when every step was decided: only a node is missed, and its
        results."""
        said = f"{role.role} ended with {exit_text(code)} when the job was over"
        if not is_node(role.role) or role.has_results or not role.is_restartable:
            self._console.say(f"{said}; no step is missing")
            self._finished.add(role.role)
            return
        new, role.is_for_results = role.start(), True
        role.tell_over()
        self._console.say(f"{said}; started again as pid {new.pid} to write its results")

    def _end_roles(self) -> None:
        """Tell roles that the job is over, if the processes that should do so may have died."""
        if not self._is_over():
            return
        assert self._over_ns is not None
        if self._are_workers_done or SYSTEM_CLOCK.now_ns() > self._over_ns + OVER_NS:
            for role in self._roles:
                if not (role.is_told or self._has_ended(role)):
                    role.tell_over()

    def _look_at_workers(self) -> bool:
        if self._guard is None:
            return False
        code = self._guard.poll()
        if self._relay is not None:
            self._relay.look()
        for line in self._agent.lines(is_last=code is not None):
            if line.startswith(SAYS):
                self._console.say(line.removeprefix(SAYS))
        if code:
            self._raise_role_failure_first()
            causes = [] if self._attendance is None else self._attendance.vain_waits()
            raise worker_failure(self.run, self._prefix, code, causes)
        if self._attendance is not None and code is None:
            for line in self._attendance.news():
                self._console.say(line)
        elif self._attendance is not None:
            self._attendance.check_joined()
            self._attendance = None
        return code is not None

    def _raise_role_failure_first(self) -> None:
        """A worker that failed because a role ended for good is not the cause."""
        for role in self._roles:
            code = role.child.poll()
            is_lost = self._replicas.is_lost(role.role)
            if code is not None and code in FINAL_CODES and not is_lost:
                raise role_failure(self.run, role.role, code, role.error())

    def _has_ended(self, role: RoleProcess) -> bool:
        if self._replicas.is_lost(role.role) or role.role in self._finished:
            return True
        return role.child.poll() == 0

    def _raise_if_stopped(self) -> None:
        if self._should_stop():
            raise Interrupted("interrupted; every process of the run is being stopped")

    # ---------------------------------------------------------------------- records, the end

    def _write_processes(self) -> None:
        entries = [
            ProcessEntry(role=each.role, rank=0, pid=each.child.pid, started=each.child.started)
            for each in self._roles
            if each.child.poll() is None
        ]
        entries += self._worker_entries()
        if entries == self._written:
            return
        self._written = entries
        self.run.write_processes(entries, self._records)
        self.sampler.watch(
            {f"worker-{e.rank}" if e.role == "worker" else e.role: e.pid for e in entries}
        )

    def _write_memory(self) -> None:
        self._memory_due_ns = SYSTEM_CLOCK.now_ns() + MEMORY_EVERY_NS
        name = self._prefix + self._records.replace("processes", "memory")
        self.run.keep(self.run.file(name), self.sampler.document())

    def _worker_entries(self) -> list[ProcessEntry]:
        if self._guard is None or self._guard.poll() is not None:
            return []
        entries = [
            ProcessEntry(role="worker", **record)
            for file, record in self._worker_records()
            if not file.with_suffix(".ended").exists()
        ]
        return sorted(entries, key=lambda entry: entry.rank)

    def _worker_records(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        for file in self.run.path.glob(f"roles/{self._prefix}worker-*.json"):
            record = read_json(file)
            if record is not None:
                yield file, record

    def close(self) -> None:
        """Stop what still runs, within 2 s, and remove what would be left."""
        children = [c for role in self._roles for c in (role.child, role.spare) if c is not None]
        if self._guard is not None:
            children.append(self._guard)
        stop_all(children, patience_s=STOP_PATIENCE_S)
        kill_marked(self.run_id + MARK_SUFFIX)
        kill_marked(self.run_id)
        pids = [record["pid"] for _, record in self._worker_records()]
        for pid in (*pids, *(child.pid for child in children)):
            remove_partial(self.run.path, pid)  # of one that was killed while it wrote
        self.sampler.close()
        if self._relay is not None:
            self._relay.close()
        if self._written:
            self._write_memory()
            self.run.write_processes([], self._records)
        if self.private_directory is not None:
            remove_directory(self.private_directory)


def worker_environ(
    run: RunDirectory, run_id: str, *, connect: str | None, threads: int
) -> dict[str, str]:  # fmt: skip
    """The environment of worker processes; which rank each is must be added."""
    environ = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "LUWU_EVENTS": str(run.path / "events"),
        MARK: run_id,
        "OMP_NUM_THREADS": str(threads),
    }
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    environ.setdefault("GLIBC_TUNABLES", WORKER_TUNABLES)
    environ.pop("LUWU_CONNECT", None)
    if connect is not None:
        environ["LUWU_CONNECT"] = connect
    return environ


def threads_per_worker(workers: int) -> int:
    """OMP_NUM_THREADS: what the environment says, else an even share of our processors."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said:
        if not said.isdecimal() or int(said) < 1:
            raise ConfigError(
                f"OMP_NUM_THREADS={said!r} in the environment is not a number; fix it"
            )
        return int(said)
    return max(1, len(os.sched_getaffinity(0)) // workers)


def threads_alone(workers: int) -> int:
    """The same for one process that has the cores of all workers to itself.

    A number from the environment is taken as it is: bits depend on the number of threads, so
    this is how to compare weights with those of several workers.
    """
    threads = threads_per_worker(workers)
    if os.environ.get("OMP_NUM_THREADS"):
        return threads
    return min(workers * threads, len(os.sched_getaffinity(0)))
