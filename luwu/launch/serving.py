"""Start switch and node for a job, and write down where to join it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from luwu.aggregate import make_aggregator
from luwu.base import loopback
from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError
from luwu.base.job_spec import JobSpec, common
from luwu.base.quantities import format_bytes
from luwu.base.socket_directory import private_directory, shared_directory, shared_endpoint
from luwu.base.tree import NODE, SWITCH, Place, Tree, groups_text, ranges_text
from luwu.join.connection import Connection, Leaf, write_connection
from luwu.launch.network import can_share, chosen_transport, groups_of, links_of, node_link, tree_of
from luwu.launch.nodes import node_role
from luwu.launch.sizes import Sizes
from luwu.launch.specs import SwitchEnds, job_spec, node_spec, switch_spec
from luwu.launch.supervisor import Supervisor
from luwu.launch.switch_memory import on_a_host, switch_plan, widest_plan
from luwu.transport.arena import check_arena
from luwu.transport.opening import SHARED_SCHEME
from switch_emu.store.striped import node_directory

STATE_DIRECTORY: Final = Path("luwu-state")


def state_directory(config: RunConfig, default: Path) -> Path | None:
    """The node's state directory; None: in RAM, for durability `none` without --state."""
    if config.state is not None:
        return config.state
    return None if config.durability == "none" else default


def serve(
    supervisor: Supervisor,
    config: RunConfig,
    *,
    state: Path | None,
    sizes: Sizes,
    say: Callable[[str], None],
) -> Connection:
    """Start node and switches here, and write `connect.json`. Raises: their errors."""
    run = supervisor.run
    for line in sizes.lines:
        say(line)
    make_aggregator(config.aggregate, config.workers)  # rejected before anything is started
    transport = chosen_transport(config)
    tree = tree_of(config)
    endpoints = _Endpoints(config, transport, tree, supervisor)
    arena_bytes = 0
    if endpoints.are_shared:
        extent_bytes = sizes.extent_chunks * sizes.chunk_bytes
        shared = widest_plan(config, tree, extent_bytes, in_arenas=True)
        arena_bytes = shared.arena_bytes
        check_arena(arena_bytes)
        if not config.no_switch:
            say(f"{shared.line()} (--switch-memory-budget)")
        say(
            f"gradient arenas: {config.workers + len(tree)} x {format_bytes(arena_bytes)} of "
            "shared memory, taken as it is used (--transport ipc shares none)"
        )
    job = job_spec(
        config, job=config.job or new_job(), chunk_bytes=sizes.chunk_bytes,
        extent_chunks=sizes.extent_chunks, arena_bytes=arena_bytes,
    )  # fmt: skip
    nodes = _add_nodes(
        supervisor, config, job if transport == "shm" else replace(job, arena_bytes=0),
        listen=endpoints.of_node, sizes=sizes, state=state,
    )  # fmt: skip
    connection = connection_of(config, job, node=nodes[0])
    if not config.no_switch:
        connection = _add_switches(supervisor, config, connection, endpoints, nodes[1:])
    write_connection(run.connect_file, connection)
    return connection


def _add_nodes(
    supervisor: Supervisor, config: RunConfig, job: JobSpec, *, listen: str, sizes: Sizes,
    state: Path | None,
) -> list[str]:  # fmt: skip
    """Start the optimizer nodes, the first first; their endpoints."""
    count = config.optimizer_nodes
    if count > 1:
        supervisor.expect_replicas(count, config.replicas)
    is_file = not listen.startswith("tcp://")
    return [
        add_node(
            supervisor, config, job, number,
            listen=f"{listen}-{number}" if number and is_file else listen,
            advertise=config.advertise if config.no_switch else None,
            memory_budget_bytes=sizes.memory_budget_bytes // count, state=state,
        )
        for number in range(count)
    ]  # fmt: skip


def add_node(
    supervisor: Supervisor, config: RunConfig, job: JobSpec, number: int, *, listen: str,
    advertise: str | None, memory_budget_bytes: int, state: Path | None,
    key_name: str | None = None,
) -> str:  # fmt: skip
    """Start an optimizer node; where it listens. `state`: that of all nodes of the job."""
    count = config.optimizer_nodes
    if count > 1 and state is not None:
        state.parent.mkdir(parents=True, exist_ok=True)
        state.mkdir(mode=0o700, exist_ok=True)
    spec = node_spec(
        config, supervisor.run, job, listen=listen, advertise=advertise,
        memory_budget_bytes=memory_budget_bytes, number=number, key_name=key_name,
        state=None if state is None else node_directory(state, number, count),
        groups=groups_of(tree_of(config)),
    )  # fmt: skip
    return supervisor.add_role(node_role(number), spec)


class _Endpoints:
    """The endpoints of a job's roles on this host."""

    def __init__(
        self, config: RunConfig, transport: str, tree: Tree, supervisor: Supervisor
    ) -> None:  # fmt: skip
        self.tree, self._transport = tree, transport
        self.are_shared = transport == "shm"
        self._bind = config.bind
        self._directory: Path | None = None
        self._has_leaves = len(tree) > 1 and config.hosts == 1
        if self._has_leaves and not self.are_shared and can_share():
            self.are_shared = True  # between a leaf and its workers
        if self.are_shared or transport != "tcp":
            self._directory = supervisor.private_directory = private_directory()
        is_alone = transport == "tcp" and config.no_switch
        self.of_node = (is_alone and self._bind) or self._at(NODE)

    def of_switch(self, place: Place) -> str:
        """The endpoint of its children; where they are workers alone, of all of them."""
        if self._has_workers_here(place) and not self.tree.below(place):
            return self._shared(place)
        if not self._has_leaves and self._transport == "tcp" and self._bind:
            return self._bind
        return self._at(SWITCH if place.process == SWITCH else f"s{self.tree.index(place)}")

    def of_workers(self, place: Place) -> str | None:
        """The endpoint of its workers, if not that of its switches."""
        is_split = self._has_workers_here(place) and self.tree.below(place)
        return self._shared(place) if is_split else None

    def _has_workers_here(self, place: Place) -> bool:
        """True if its workers connect by shared memory, and others in another way."""
        return bool(self.are_shared and self._transport != "shm" and place.workers)

    def _shared(self, place: Place) -> str:
        return f"shm://{self._directory}/w{self.tree.index(place)}"

    def _at(self, name: str) -> str:
        """`name`: that of the socket, which must be short."""
        if self._transport == "tcp":
            return loopback.endpoint()
        return f"{self._transport}://{self._directory}/{name}"


def _add_switches(
    supervisor: Supervisor, config: RunConfig, connection: Connection, endpoints: _Endpoints,
    more_nodes: Sequence[str],
) -> Connection:  # fmt: skip
    """Start the switches of a tree that are here, each after its parent; the root knows further
    nodes too."""
    tree = endpoints.tree
    parents = {NODE: connection.node}
    leaves = []
    for place in tree if config.hosts == 1 else (tree.root,):
        workers_at = endpoints.of_workers(place)
        ends = SwitchEnds(
            listen=endpoints.of_switch(place),
            parent=parents[place.parent],
            more_parents=tuple(more_nodes) if place.parent == NODE else (),
            workers_at=workers_at,
            advertise=config.advertise,
        )
        parents[place.name] = add_switch(supervisor, config, connection, tree, place, ends)
        if place.workers:
            leaves.append(leaf_of(place, workers_at or parents[place.name]))
    return replace(
        connection,
        switch=parents[tree.root.name],
        leaves=tuple(leaves) if len(tree) > 1 else (),
        retry=links_of(config).worker.retry(),
    )


def add_switch(
    supervisor: Supervisor, config: RunConfig, connection: Connection, tree: Tree, place: Place,
    ends: SwitchEnds, *, key_name: str | None = None,
) -> str:  # fmt: skip
    """Start the switch of a place in the tree; where it listens."""
    above = node_link(config) if place.parent == NODE else links_of(config).switch
    job = replace(connection, retry=above.retry(), grace_s=config.grace, insecure=config.insecure)
    spec = switch_spec(config, supervisor.run, job, ends, tree=tree, place=place, key_name=key_name)
    return supervisor.add_role(place.process, spec)


def add_leaf(
    supervisor: Supervisor, config: RunConfig, parent: Connection, tree: Tree, place: Place, *,
    files: tuple[str, ...], more_parents: tuple[str, ...] = (),
) -> Connection:  # fmt: skip
    """Start a switch of a tree, on a host of its own; the connection of those below it. Workers
    alone, with no --bind, connect by shared memory, and the switch caches their weights in half of
    the free memory."""
    listen, arena_bytes, name = config.bind or loopback.endpoint(), 0, f"{parent.job}-{place.name}"
    if config.bind is None and not tree.below(place) and can_share():
        supervisor.private_directory = private_directory()
        listen = f"{SHARED_SCHEME}{supervisor.private_directory}/w"
    elif config.bind == shared_endpoint(name):
        supervisor.private_directory = shared_directory(name)
    elif listen.startswith(SHARED_SCHEME):
        raise ConfigError(f"bind: {listen} is none of ours; leave --bind out, or give tcp://")
    if listen.startswith(SHARED_SCHEME):
        config = on_a_host(config)
        plan = switch_plan(
            config, child_count=len(tree.children(place)), extent_bytes=parent.extent_bytes,
            in_arenas=True,
        )  # fmt: skip
        arena_bytes = plan.arena_bytes
        check_arena(arena_bytes)
    ends = SwitchEnds(
        listen=listen, parent=parent.endpoint, more_parents=more_parents, parent_files=files,
        advertise=config.advertise,
        connect_timeout_s=parent.connect_timeout_s if parent.hosts > 1 else None,
    )  # fmt: skip
    joined = replace(parent, arena_bytes=arena_bytes)
    endpoint = add_switch(supervisor, config, joined, tree, place, ends, key_name=config.key_name)
    leaves = (leaf_of(place, endpoint),) if place.workers else ()
    return replace(joined, switch=endpoint, leaves=leaves, more_nodes=(), insecure=config.insecure)


def leaf_of(place: Place, endpoint: str) -> Leaf:
    """A switch as its workers know it."""
    return Leaf(ranks=ranges_text(place.workers), endpoint=endpoint)


def connection_of(config: RunConfig, job: JobSpec, *, node: str) -> Connection:
    """The connection of this job's members. Keys that it calls the same are passed on."""
    own = {
        "world_size": config.workers, "node": node, "retry": node_link(config).retry(),
        "connect_timeout_s": config.connect_timeout, "drop_after_s": config.drop_after,
        "tree": "" if config.tree is None else groups_text(tree_of(config)),
    }  # fmt: skip
    return Connection(**common(Connection, config) | common(JobSpec, job) | own)


def new_job() -> int:
    """A number no other job has, by chance."""
    return secrets.randbits(48) + 1
