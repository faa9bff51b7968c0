"""The specifications of a job's processes, from its configuration.

A key that a specification calls the same is passed on as it is (`luwu.base.job_spec.common`); what
it calls otherwise, or what follows from several keys, is written out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError
from luwu.base.job_spec import JobSpec, common, document_of
from luwu.base.links import LinkPair
from luwu.base.seeds import derive
from luwu.base.tree import Place, Tree
from luwu.launch.network import dilated_disk_rate, links_of, node_link
from luwu.launch.nodes import node_result, node_role
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.switch_memory import switch_plan
from luwu.launch.worker_loss import drop_after_ns, drops_workers
from luwu.transport.opening import SHARED_SCHEME
from switch_emu.node.core.actions import NodeLimits
from switch_emu.node.spec import NodeSpec
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.process import SwitchSpec


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
    own = {
        "job": job, "chunk_bytes": chunk_bytes, "extent_chunks": extent_chunks,
        "grace_s": config.grace, "arena_bytes": arena_bytes,
    }  # fmt: skip
    return JobSpec(**common(JobSpec, config) | own)


def node_spec(
    config: RunConfig, run: RunDirectory, job: JobSpec, *, listen: str, advertise: str | None,
    memory_budget_bytes: int, state: Path | None, groups: Sequence[int] = (), number: int = 0,
    key_name: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The specification of a node (`NodeSpec`) as JSON; `state` and the budget are this node's
    own. Keys that it calls the same are passed on as they are.
    """
    role, link = node_role(number), node_link(config)
    own = _of_role(config, run, role, link) | {
        "listen": listen,
        "advertise": advertise,
        "keys": keys_of(config, listen),
        "key_name": key_name or role,
        "retry": link.retry() if config.optimizer_nodes > 1 else None,
        "world_size": config.workers,
        "state": None if state is None else state.absolute(),
        "memory_budget_bytes": memory_budget_bytes,
        "has_switch": not config.no_switch,
        "summary": run.result(node_result(number, config.optimizer_nodes)),
        "number": number,
        "groups": tuple(groups),
        "limits": NodeLimits(
            workers_min=config.workers_min if drops_workers(config) else None,
            workers_max=config.workers_max,
        ),
        "own_switch": SwitchLimits(drop_after_ns=drop_after_ns(config)),
        "disk_bytes_per_s": dilated_disk_rate(config),
    }
    return document_of(NodeSpec(**common(NodeSpec, config) | common(JobSpec, job) | own))


def _of_role(config: RunConfig, run: RunDirectory, role: str, link: LinkPair) -> dict[str, Any]:
    """The files of a role, and the link that it emulates."""
    return {
        "events": run.events(role),
        "counters": run.counters(role),
        "link": None if link.is_ideal else link,
        "link_seed": derive(config.seed, "links", role),
    }


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
    """The specification of a switch (`SwitchSpec`) as JSON, likewise. Raises ConfigError."""
    children, roles = tree.children(place), tree.roles_below(place)
    shares_below = (ends.workers_at or ends.listen).startswith(SHARED_SCHEME)
    plan = switch_plan(
        config, child_count=len(children), extent_bytes=job.extent_bytes,
        in_arenas=shares_below and job.arena_bytes > 0,
    )  # fmt: skip
    link = links_of(config).below(roles, place.process)
    own = asdict(ends) | _of_role(config, run, place.process, link) | {
        "name": place.name,
        "above": tree.parent_process(place),
        "children": tuple(children),
        "rank": tree.index(place),
        "keys": keys_of(config, ends.listen, ends.workers_at or "", ends.parent),
        "key_name": key_name or place.process,
        "memory_budget_bytes": plan.budget_bytes,
        "limits": SwitchLimits(
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
        "summary": run.result(f"{place.process}.json"),
        "link_roles": tuple(roles),
    }  # fmt: skip
    return document_of(SwitchSpec(**common(SwitchSpec, config) | common(JobSpec, job) | own))
