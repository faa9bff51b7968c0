"""A switch and a node process that serve one job after the other (design note 0014).

    with Service(directory) as service:
        with service.open_job(run, config, state=state) as job:
            ...                       workers join by run.connect_file
            job.wait_until_over(60)   the last worker has left and the state is written

Each job has its own id, endpoints, private directory and state: nothing of one can be met in
another. The processes are started with the first job and live until `close`, or as long as we do.
Unlike a `Supervisor`, a service starts nothing again: who uses it wants to know what died.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.closing import Closing
from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError, ConnectionFailed, DeadlineError
from luwu.base.json_file import read_json
from luwu.base.own import own_module
from luwu.join.connection import Connection
from luwu.launch.nodes import kind_of
from luwu.launch.processes.children import Child, kill_marked, stop_all
from luwu.launch.processes.console import tail
from luwu.launch.processes.failures import role_failure
from luwu.launch.processes.run_directory import ProcessEntry, RunDirectory
from luwu.launch.roles import ended_file, ready_file, role_environ, wait_until_listens, write_role
from luwu.launch.serving import decide_sizes, serve, tree_of
from luwu.launch.supervisor import STOP_PATIENCE_S
from switch_emu.switch.capacity import POOL_SLOTS

POLL_S: Final = 0.005
DROP_S: Final = 5.0
"""Time for a dropped job to end; its loops look every 0.2 s."""


class Service(Closing):
    """The processes. Use it as a context manager, from one thread."""

    def __init__(
        self, directory: Path, *, timeout_s: float = 60.0, slot_count: int = POOL_SLOTS
    ) -> None:
        """`slot_count`: slots that each role has for all jobs of protocol fidelity together."""
        self._slots = ["--slots", str(slot_count)]
        self.run = RunDirectory.create(directory)
        self.timeout_s = timeout_s
        self.jobs: list[ServiceJob] = []
        """Those that are open."""
        self._children: dict[str, Child] = {}
        self._run_id = f"{self.run.path.name}-{os.getpid()}"

    @property
    def pids(self) -> dict[str, int]:
        """Process numbers of the roles that were started."""
        return {role: child.pid for role, child in self._children.items()}

    def open_job(self, run: RunDirectory, config: RunConfig, *, state: Path | None) -> ServiceJob:
        """Serve a job; returns when workers may join it.

        Raises: the role's own error, ConnectionFailed.
        """
        if config.optimizer_nodes > 1:
            raise ConfigError(
                "optimizer_nodes: one node serves job after job; omit it, or start the run "
                "separately with `luwu run`"
            )
        job = ServiceJob(self, run)
        self.jobs.append(job)
        try:
            switches = () if config.no_switch else tree_of(config)
            for role in ("node", *(place.process for place in switches)):
                self._start(role)  # all load at the same time
            sizes = decide_sizes(config, state)
            job.connection = serve(job, config, state=state, sizes=sizes, say=lambda text: None)
        except BaseException:
            job.close()
            raise
        return job

    def send(self, role: str, do: str, config: Path) -> None:
        """Tell a role to open or to drop a job."""
        self.look(role)
        try:
            self._children[role].send_line(json.dumps({"do": do, "config": str(config)}))
        except BrokenPipeError as exc:
            raise ConnectionFailed(
                f"the {role} of the service does not listen any more\n{tail(self.run.log(role))}"
            ) from exc

    def look(self, role: str) -> None:
        """Raise if a role has ended: it should not, before we do."""
        code = self._children[role].poll()
        if code is not None:
            raise role_failure(self.run, role, code, {}, "; no job can be served any more")

    def has_ended(self, role: str) -> bool:
        """True if a role's process is gone."""
        return self._children[role].poll() is not None

    def _start(self, role: str) -> None:
        if role in self._children:
            self.look(role)
            return
        self._children[role] = Child(
            role,
            [sys.executable, *own_module("switch_emu"), kind_of(role), "--jobs", *self._slots],
            log=self.run.log(role),
            environ=role_environ(self._run_id),
        )
        self.run.write_processes([
            ProcessEntry(role=each.name, rank=0, pid=each.pid, started=each.started)
            for each in self._children.values()
        ])  # fmt: skip

    def close(self) -> None:
        """Drop what is open and end the processes; what was left is killed."""
        for job in list(self.jobs):
            job.close()
        stop_all(list(self._children.values()), patience_s=STOP_PATIENCE_S)
        kill_marked(self._run_id)


class ServiceJob(Closing):
    """One job on a service; a `Starter` of its roles."""

    connection: Connection

    def __init__(self, service: Service, run: RunDirectory) -> None:
        self.run = run
        self.private_directory: Path | None = None
        self.left_sockets: list[str] = []
        """Files that the roles had not removed when the job was over; a killed role could not."""
        self._service = service
        self._roles: list[str] = []

    def expect_replicas(self, optimizer_nodes: int, replicas: int) -> None:
        """A job of a service has one node."""

    def add_role(self, role: str, spec: dict[str, Any]) -> str:
        """Have a role open the job and wait until it listens; its endpoint."""
        for stale in (ready_file(self.run, role), ended_file(self.run, role)):
            stale.unlink(missing_ok=True)
        config = write_role(self.run, role, spec, self.private_directory)
        self._roles.append(role)
        self._service.send(role, "open", config)
        ready = wait_until_listens(
            role,
            self._service.run.log(role),
            ready=lambda: read_json(ready_file(self.run, role)),
            look=self.look,
            timeout_s=self._service.timeout_s,
            poll_s=POLL_S,
        )
        endpoint: str = ready["endpoint"]
        return endpoint

    def look(self) -> None:
        """Raise what went wrong with a role, if anything did."""
        for role in self._roles:
            self._service.look(role)
            ended = read_json(ended_file(self.run, role))
            if ended is not None and ended["exit_code"] != 0:
                error = read_json(self.run.error(role)) or {}
                raise role_failure(self.run, role, ended["exit_code"], error)

    @property
    def is_over(self) -> bool:
        """True if no role serves it any more."""
        return all(
            ended_file(self.run, role).exists() or self._service.has_ended(role)
            for role in self._roles
        )

    def wait_until_over(self, timeout_s: float) -> None:
        """Return when every worker has left and the state is written.

        Raises: what went wrong with a role; DeadlineError.
        """
        said = f"the workers have left, but switch and node still serve job {self.connection.job}"
        self._wait(timeout_s, said, self.look)
        self.look()

    def close(self) -> None:
        """Have it dropped if it is not over, and remove its sockets. Raises DeadlineError."""
        if self not in self._service.jobs:
            return
        self._service.jobs.remove(self)
        try:
            for role in self._roles:
                if not ended_file(self.run, role).exists() and not self._service.has_ended(role):
                    self._service.send(role, "drop", self.run.role(f"{role}.json"))
            said = f"{' and '.join(self._roles)} were asked to drop a job, and still serve it"
            self._wait(DROP_S, said)
        finally:
            self.run.connect_file.unlink(missing_ok=True)  # nobody can join any more
            if self.private_directory is not None:
                if not any(self._service.has_ended(role) for role in self._roles):
                    self.left_sockets = [str(path) for path in self.private_directory.iterdir()]
                shutil.rmtree(self.private_directory, ignore_errors=True)

    def _wait(self, timeout_s: float, said: str, look: Callable[[], None] = lambda: None) -> None:
        """Return when it is over. Raises DeadlineError, which begins as `said`."""
        end_ns = SYSTEM_CLOCK.now_ns() + int(timeout_s * 1e9)
        while not self.is_over:
            look()
            if SYSTEM_CLOCK.now_ns() > end_ns:
                raise DeadlineError(
                    f"{said} after {timeout_s:.0f} s; their logs are in "
                    f"{self._service.run.path / 'logs'}"
                )
            sleep(POLL_S)
