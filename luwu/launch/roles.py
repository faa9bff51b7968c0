"""The switch and the node as processes: what they are sent, and what they report when they listen.

    roles/node.json          written by us    {"role", "spec", "ready", "error", ...}
    roles/node.ready.json    written by it    {"pid", "endpoint", "lines"}: it listens
    errors/node.json         written by it    what ended it

`python -m luwu.base.own switch_emu node --config roles/node.json` reads the first. A role that
died is started again with the same state and endpoint, so no peer has to learn of the change.
The switches of a tree are called `switch-NAME`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK, new_incarnation, sleep, utc_text
from luwu.base.errors import ConfigError, ConnectionFailed, refusing
from luwu.base.events import JOB_OVER
from luwu.base.json_file import json_object, read_json, remove_partial, write_json
from luwu.base.own import own_module
from luwu.launch.nodes import is_node, kind_of
from luwu.launch.processes.children import MARK, ROLE_TUNABLES, Child, DiskBytes
from luwu.launch.processes.console import tail
from luwu.launch.processes.run_directory import RunDirectory

POLL_S: Final = 0.05
SPARE_AFTER_NS: Final = 10 * 10**9
"""From its start until a role has a spare: short runs need none."""


class RoleProcess:
    """One role, over all its starts."""

    child: Child
    """The process of its latest start."""
    spare: Child | None = None
    """Has imported all that it needs, and waits to take over."""
    is_told = False
    """The process that runs now has heard that the job is over."""
    is_for_results = False
    """It was started again as the job was over, to write its results."""

    def __init__(
        self, run: RunDirectory, role: str, spec: Mapping[str, Any], *, run_id: str,
        private_directory: Path | None = None,
    ) -> None:  # fmt: skip
        self.role = role
        self.endpoint: str | None = None
        """The endpoint at which it listens, once it has reported it."""
        self._run = run
        self._run_id = run_id
        self._spec = dict(spec)
        self._private_directory = private_directory
        self._disk_before = DiskBytes()
        self._started_ns = 0

    def start(self) -> Child:
        """Start it, the first time or again."""
        if self._started_ns:
            self._disk_before = self.disk
            remove_partial(self._run.path, self.child.pid)
            self._spec["listen"] = self._listens_at
            if is_node(self.role) and self.endpoint is not None:  # it has looked at the state
                self._spec["resume"] = True
        self._spec["incarnation"] = new_incarnation(self._spec.get("incarnation") or 0)
        ready_file(self._run, self.role).unlink(missing_ok=True)
        self._run.error(self.role).unlink(missing_ok=True)
        with refusing(f"the start-up configuration of the {self.role}"):
            write_role(self._run, self.role, self._spec, self._private_directory)
        spare, self.spare = self.spare, None
        if spare is None or spare.poll() is not None:
            spare = self._new_child()
        self.child, spare.started = spare, utc_text()
        self._started_ns, self.is_told = SYSTEM_CLOCK.now_ns(), False
        with contextlib.suppress(BrokenPipeError):  # it has just ended, which is seen as always
            spare.send_line("begin")
        return spare

    def keep_spare(self) -> None:
        """Have a process at hand that takes over, once this one has run for a while."""
        if self.spare is None and SYSTEM_CLOCK.now_ns() > self._started_ns + SPARE_AFTER_NS:
            with contextlib.suppress(ConfigError):  # the run can do without
                self.spare = self._new_child()

    def _new_child(self) -> Child:
        """A process that waits for the line with which it begins."""
        environ = role_environ(self._run_id)
        if self._started_ns:
            environ.pop("LUWU_FAILPOINTS", None)  # a place that failed once would fail for ever
        module = [sys.executable, *own_module("switch_emu"), kind_of(self.role)]
        command = [*module, "--config", str(self._run.role(f"{self.role}.json")), "--until-eof"]
        return Child(self.role, command, log=self._run.log(self.role), environ=environ)

    def tell_over(self) -> None:
        """Tell it that all workers have left: it ends, as it does if it learns of that itself."""
        self.is_told = True
        with contextlib.suppress(BrokenPipeError):  # it has just ended
            self.child.send_line("over")

    @property
    def saw_job_over(self) -> bool:
        """True if it has recorded, since its last start, that the job is over."""
        records = map(json_object, tail(self._run.events(self.role)).splitlines())
        return any(
            each.get("name") == JOB_OVER and each["at_ns"] > self._started_ns for each in records
        )

    @property
    def has_results(self) -> bool:
        """True if its results are written, which it does last."""
        return Path(self._spec["summary"]).exists()

    def ready(self) -> dict[str, Any] | None:
        """Its report when it began to listen; None until then."""
        document = read_json(ready_file(self._run, self.role))
        if document is not None:
            self.endpoint = document["endpoint"]
        return document

    def error(self) -> dict[str, Any]:
        """The error that it wrote at its end, if any."""
        return read_json(self._run.error(self.role)) or {}

    @property
    def _listens_at(self) -> str:
        """Where it listens again: at the port that was chosen for it, if one was."""
        asked: str = self._spec["listen"]
        if self.endpoint is None:
            return asked
        if self._spec.get("advertise") is None:
            return self.endpoint
        port = self.endpoint.rpartition(":")[2]
        return f"{asked.removesuffix(':0')}:{port}" if asked.endswith(":0") else asked

    @property
    def is_restartable(self) -> bool:
        """True if its state outlives it; a switch has none to lose."""
        return not is_node(self.role) or self._spec["state"] is not None

    @property
    def disk(self) -> DiskBytes:
        """The kernel's count over all its starts."""
        before, now = self._disk_before, self.child.disk
        return DiskBytes(before.read + now.read, before.written + now.written)


def write_role(
    run: RunDirectory, role: str, spec: Mapping[str, Any], private_directory: Path | None
) -> Path:
    """Write what a role is to read; the file."""
    config = run.role(f"{role}.json")
    write_json(config, {
        "schema": 1,
        "role": role,
        "spec": dict(spec),
        "ready": str(ready_file(run, role)),
        "error": str(run.error(role)),
        "private_directory": None if private_directory is None else str(private_directory),
    }, mode=0o600)  # fmt: skip
    return config


def ready_file(run: RunDirectory, role: str) -> Path:
    """The file in which a role reports that it listens."""
    return run.role(f"{role}.ready.json")


def role_environ(run_id: str) -> dict[str, str]:
    """The environment of a switch or node process."""
    environ = {**os.environ, MARK: run_id, "PYTHONUNBUFFERED": "1"}
    environ.setdefault("GLIBC_TUNABLES", ROLE_TUNABLES)
    return environ


def wait_until_listens(
    role: str, log: Path, *, ready: Callable[[], dict[str, Any] | None],
    look: Callable[[], None], timeout_s: float,
) -> dict[str, Any]:  # fmt: skip
    """The role's report when it began to listen.

    Raises: what `look` raises, where it never will; ConnectionFailed when it says nothing.
    """
    deadline_ns = SYSTEM_CLOCK.now_ns() + int(timeout_s * 1e9)
    while (said := ready()) is None:
        look()
        if SYSTEM_CLOCK.now_ns() > deadline_ns:
            raise ConnectionFailed(
                f"the {role} did not listen within {timeout_s:.0f} s; log {log}\n{tail(log)}",
                code="E304",
            )
        sleep(POLL_S)
    return said
