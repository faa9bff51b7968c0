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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from luwu.base.clock import SYSTEM_CLOCK, new_incarnation, sleep, utc_text
from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError, ConnectionFailed, refusing
from luwu.base.events import JOB_OVER
from luwu.base.job_spec import JobSpec, document_of, shared_fields
from luwu.base.json_file import json_object, read_json, remove_partial, write_json
from luwu.base.links import LinkPair
from luwu.base.own import own_module
from luwu.base.seeds import derive
from luwu.base.tree import Place, Tree
from luwu.launch.network import dilated_disk_rate, links_of, node_link
from luwu.launch.nodes import is_node, kind_of, node_result, node_role
from luwu.launch.processes.children import MARK, ROLE_TUNABLES, Child, DiskBytes
from luwu.launch.processes.console import tail
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.switch_memory import switch_plan
from luwu.launch.worker_loss import drop_after_ns, drops_workers
from luwu.transport.opening import SHARED_SCHEME
from switch_emu.node.core.actions import NodeLimits
from switch_emu.node.spec import NodeSpec
from switch_emu.store import Durability
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.process import SwitchSpec

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchEnds:
    """Where a switch listens, and the endpoints above it: fields of `SwitchSpec`."""

    listen: str
    parent: str
    more_parents: tuple[str, ...] = ()
    """Endpoints of nodes after the first."""
    parent_files: tuple[str, ...] = ()
    """The connection file of each endpoint above, if there are files."""
    workers_at: str | None = None
    """Endpoint for workers, where `listen` is for switches alone."""
    advertise: str | None = None
    connect_timeout_s: float | None = None
    """How long it seeks what is above it; None: without end, as those of a tree start in any
    order."""


def job_spec(
    config: RunConfig, *, job: int, chunk_bytes: int, extent_chunks: int = 1, arena_bytes: int = 0
) -> JobSpec:  # fmt: skip
    """The specification that all processes of a job have in common."""
    return JobSpec(
        job=job, chunk_bytes=chunk_bytes, extent_chunks=extent_chunks,
        grace_s=config.grace, arena_bytes=arena_bytes,
        replicas=config.replicas, insecure=config.insecure,
    )  # fmt: skip


def node_spec(
    config: RunConfig, run: RunDirectory, job: JobSpec, *, listen: str, advertise: str | None,
    memory_budget_bytes: int, state: Path | None, groups: Sequence[int] = (), number: int = 0,
    key_name: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The specification of a node (`NodeSpec`) as JSON; `state` and the budget are this node's
    own.
    """
    role = node_role(number)
    is_one_of_several = config.optimizer_nodes > 1
    shared = replace(job, retry=node_link(config).retry() if is_one_of_several else None)
    spec = NodeSpec(
        **shared_fields(shared),
        world_size=config.workers,
        listen=listen,
        advertise=advertise,
        keys=keys_of(config, listen),
        key_name=key_name or role,
        state=None if state is None else state.absolute(),
        durability=cast("Durability", config.durability),
        log_steps=config.log_steps,
        memory_budget_bytes=memory_budget_bytes,
        has_switch=not config.no_switch,
        resume=config.resume,
        events=run.events(role),
        counters=run.counters(role),
        summary=run.result(node_result(number, config.optimizer_nodes)),
        number=number,
        optimizer_nodes=config.optimizer_nodes,
        fidelity=config.fidelity,
        slots=config.slots,
        groups=tuple(groups),
        limits=NodeLimits(
            workers_min=config.workers_min if drops_workers(config) else None,
            workers_max=config.workers_max,
        ),
        own_switch=SwitchLimits(drop_after_ns=drop_after_ns(config)),
        disk_bytes_per_s=dilated_disk_rate(config),
        link=_emulated(node_link(config)),
        link_seed=derive(config.seed, "links", role),
    )
    return document_of(spec)


def _emulated(link: LinkPair) -> LinkPair | None:
    return None if link.is_ideal else link


def keys_of(config: RunConfig, *endpoints: str) -> Path | None:
    """Where a role's key is, if any of its connections is one that has keys."""
    is_tcp = any(endpoint.startswith("tcp://") for endpoint in endpoints)
    return config.keys.absolute() if config.keys is not None and is_tcp else None


def check_keys(config: RunConfig) -> None:
    """Refuse the name of a key where there are no keys. Raises ConfigError."""
    if config.key_name is not None and config.keys is None:
        raise ConfigError(
            "key_name: without --keys no connection has a key; give --keys DIR too, or leave "
            "--key-name out"
        )


def key_environ(config: RunConfig) -> dict[str, str]:
    """The environment by which workers find their keys."""
    found = {}
    if config.keys is not None:
        found["LUWU_KEYS"] = str(config.keys.absolute())
    if config.key_name is not None:
        found["LUWU_KEY_NAME"] = config.key_name
    return found


def switch_spec(
    config: RunConfig, run: RunDirectory, job: JobSpec, ends: SwitchEnds, *, tree: Tree,
    place: Place, key_name: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The specification of a switch (`SwitchSpec`) as JSON. Raises ConfigError."""
    children, roles = tree.children(place), tree.roles_below(place)
    shares_below = (ends.workers_at or ends.listen).startswith(SHARED_SCHEME)
    plan = switch_plan(
        config, child_count=len(children), extent_bytes=job.extent_bytes,
        in_arenas=shares_below and job.arena_bytes > 0,
    )  # fmt: skip
    spec = SwitchSpec(
        **shared_fields(job),
        **asdict(ends),
        name=place.name,
        above=tree.parent_process(place),
        children=tuple(children),
        rank=tree.index(place),
        keys=keys_of(config, ends.listen, ends.workers_at or "", ends.parent),
        key_name=key_name or place.process,
        memory_budget_bytes=plan.budget_bytes,
        limits=SwitchLimits(
            slot_bytes_max=plan.slots_bytes,
            copies_bytes_max=plan.copies_bytes,
            cache_bytes_max=plan.cache_bytes,
            push_window_bytes=plan.window_bytes,
            drop_after_ns=drop_after_ns(config),
            drop_node_after_ns=int(config.drop_node_after * 1e9) if job.replicas > 1 else None,
            fill_rate_bytes_per_s=config.fill_rate if job.replicas > 1 else None,
            workers_min=config.workers_min if drops_workers(config) else None,
            workers_max=config.workers_max,
        ),
        events=run.events(place.process),
        counters=run.counters(place.process),
        summary=run.result(f"{place.process}.json"),
        fidelity=config.fidelity,
        slots=config.slots,
        link_roles=tuple(roles),
        link=_emulated(links_of(config).below(roles, place.process)),
        link_seed=derive(config.seed, "links", place.process),
    )
    return document_of(spec)
