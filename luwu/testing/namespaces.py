"""The job that a test's workers join: a namespace of this session's service.

A namespace is a state directory and the runs on it. Each run is a job of its own, with its own id
and endpoints, and goes on with the state that the runs before it left: the way to test a resume.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from luwu.base.config import KEYS, RunConfig
from luwu.base.errors import ConfigError
from luwu.base.json_file import read_json
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.service import Service, ServiceJob
from luwu.testing.leftovers import memory_files, unfinished_files, until_empty
from switch_emu.store.directory import CONFIG_NAME

DEFAULTS: Final = {"memory_budget": "256MiB", "durability": "process"}
"""Small, and without a flush for each step: a test's state need not survive a power loss."""


class ProcService(Service):
    """The processes behind one `luwu_proc` fixture, and how they serve."""

    def __init__(
        self, directory: Path, keys: Mapping[str, object], *, timeout_s: float, keep: bool
    ) -> None:
        super().__init__(directory, timeout_s=timeout_s)
        texts = {**DEFAULTS, **{name: _text(value) for name, value in keys.items()}}
        self._config: dict[str, Any] = {
            name: KEYS[name].parse(text, name) for name, text in texts.items()
        }
        self.keep = keep
        self.open: list[Namespace] = []
        """Namespaces that were not dropped yet."""

    @property
    def logs(self) -> list[Path]:
        """The logs of switch and node, over all jobs."""
        return [self.run.log(role) for role in self.pids]

    def namespace(self, directory: Path) -> Namespace:
        """A fresh namespace with its files below `directory`; drop it when it is not needed."""
        return Namespace(self, directory)

    def config(self, *, workers: int, resume: bool) -> RunConfig:
        """The configuration of a job."""
        return RunConfig(**{**self._config, "workers": workers, "resume": resume})


class Namespace:
    """A state and the runs on it."""

    def __init__(self, service: ProcService, directory: Path) -> None:
        self.service = service
        self.directory = directory
        self.state = directory / "state"
        """The node's state directory."""
        self.job: ServiceJob | None = None
        """The job that is served now."""
        self.last_run: RunDirectory | None = None
        self._numbers = itertools.count()
        self._leaks: list[str] = []
        directory.mkdir(parents=True)
        service.open.append(self)

    def start(self, workers: int) -> ServiceJob:
        """Serve a job on this state; its connection file is `job.run.connect_file`."""
        if self.job is not None:
            raise ConfigError(
                "this namespace serves a job already; wait for its end, or take another namespace"
            )
        run = RunDirectory.create(self.directory / f"run-{next(self._numbers)}")
        has_state = (self.state / CONFIG_NAME).exists()  # something to go on with
        config = self.service.config(workers=workers, resume=has_state)
        state = None if config.durability == "none" else self.state
        self.last_run = run
        self.job = self.service.open_job(run, config, state=state)
        return self.job

    def end(self, *, has_joined: bool) -> None:
        """The workers have left: let switch and node finish, if there was a job, and drop it."""
        job, self.job = self.job, None
        if job is None:
            return
        try:
            if has_joined:
                job.wait_until_over(self.service.timeout_s)
        finally:
            self._drop(job)

    def abandon(self) -> None:
        """Drop the job at once, whatever its workers are doing."""
        job, self.job = self.job, None
        if job is not None:
            self._drop(job)

    def drop(self) -> list[str]:
        """Forget the namespace with its state; what it left that it should not have."""
        if self in self.service.open:
            self.service.open.remove(self)
            self.abandon()
            self._leaks += unfinished_files(self.state)
            if not self.service.keep:
                shutil.rmtree(self.state, ignore_errors=True)
        return self._leaks

    @property
    def summary(self) -> dict[str, Any]:
        """Results of the last run: steps, weights_digest, bytes on disk and network."""
        found = None if self.last_run is None else read_json(self.last_run.result("node.json"))
        if found is None:
            raise ConfigError("no run has come to its end in this namespace; luwu_run one first")
        return found

    def _drop(self, job: ServiceJob) -> None:
        job.close()
        self._leaks += [f"socket {path}" for path in job.left_sockets]
        if not self.service.jobs:
            pids = self.service.pids
            self._leaks += until_empty(lambda: [
                f"{count} segments of shared memory held by the {role} (pid {pid})"
                for role, pid in pids.items()
                if (count := memory_files([pid]))
            ])  # fmt: skip


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
