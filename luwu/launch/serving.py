"""Start switch and node for a job, and write down where to join it."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from luwu.aggregate import FLOAT32, make_aggregator
from luwu.base import loopback
from luwu.base.config import KEYS, RunConfig
from luwu.base.errors import ConfigError
from luwu.base.job_spec import JobSpec, shared_fields
from luwu.base.limits import ARENA_BYTES_MIN
from luwu.base.quantities import exact_size, format_bytes
from luwu.base.socket_directory import private_directory, shared_directory, shared_endpoint
from luwu.base.tree import (
    NODE,
    SWITCH,
    Place,
    Tree,
    groups_text,
    one_switch,
    ranges_text,
    read_tree,
    tree_of_hosts,
)
from luwu.join.connection import Connection, Leaf, write_connection
from luwu.launch.network import chunk_for_links, links_of, node_link
from luwu.launch.nodes import check_nodes, node_role
from luwu.launch.roles import SwitchEnds, job_spec, node_spec, switch_spec
from luwu.launch.supervisor import Supervisor
from luwu.launch.switch_memory import extent_of_switches, switch_plan, widest_plan
from luwu.protocol.contribution import depth
from luwu.transport.arena import check_arena, memory_limit
from luwu.transport.opening import SHARED_SCHEME
from switch_emu.node.plan import (
    EXTENT_AUTO_BYTES_MAX,
    NodePlan,
    default_chunk_bytes,
    default_extent_chunks,
    plan_node,
)
from switch_emu.store.directory import CONFIG_NAME, read_config
from switch_emu.store.striped import node_directory
from switch_emu.switch.capacity import planned_slots
from switch_emu.switch.plan import BUDGET_AUTO_MAX

STATE_DIRECTORY: Final = Path("luwu-state")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes that `auto` was resolved to."""

    memory_budget_bytes: int
    chunk_bytes: int
    extent_chunks: int = 1
    """Chunks that travel together at most."""
    lines: tuple[str, ...]
    """The decisions, as text."""
    warnings: tuple[str, ...] = ()
    """Reasons for the job to be slower than it could be, a sentence each."""


NO_COMPILER: Final = (
    "no C compiler here: sums and updates use the slow kernels, in Python; install gcc and the "
    "headers of the C library, so that there is a `cc` on the PATH"
)


def decide_sizes(
    config: RunConfig, state: Path | None, *, auto_extent: bool = True
) -> Sizes:  # fmt: skip
    """Memory budget and chunk: as asked, or half of the free memory and what fits it.

    An existing state keeps the chunk it was made with. `auto_extent`: where none is asked for, it
    follows from the budget; else it is one chunk. Raises ConfigError, StateError.
    """
    check_fidelity(config)
    check_nodes(config, state)
    count = config.optimizer_nodes
    lines = []
    slot_count = own_slots(config)
    budget = config.memory_budget
    if budget is None:
        free = free_memory_bytes()
        budget = free // 2
        lines.append(
            f"memory budget of the node: {format_bytes(budget)}, half of the "
            f"{format_bytes(free)} that are free (--memory-budget)"
        )
    else:
        check_budget(budget)
    chunk = config.chunk
    made_with = None if state is None else chunk_bytes_of(node_directory(state, 0, count))
    if chunk is None and made_with is not None:
        chunk = made_with
        lines.append(f"chunk: {exact_size(chunk)}, as {state} was made with")
    elif chunk is None:
        chunk = default_chunk_bytes(
            budget // count, world_size=config.workers, has_switch=not config.no_switch,
            slot_count=slot_count,
        )  # fmt: skip
        chunk, most = chunk_for_links(config, chunk), chunk
        reason = "memory budget" if chunk == most else "rate of the links"
        lines.append(f"chunk: {exact_size(chunk)}, from the {reason} (--chunk)")
    if count > 1:
        lines.append(
            f"optimizer nodes: {count}, each with {format_bytes(budget // count)} of the budget "
            f"and {config.replicas} in {count} of the chunks"
        )
    extent_chunks = _decide_extent(config, budget // count, chunk, auto=auto_extent)
    if extent_chunks > 1:
        lines.append(f"extent: {extent_chunks} chunks travel together (--extent)")
    # Raises where a switch has no room for what its children push.
    widest_plan(config, tree_of(config), extent_chunks * chunk, in_arenas=node_in_arenas(config))
    return Sizes(
        memory_budget_bytes=budget, chunk_bytes=chunk, extent_chunks=extent_chunks,
        lines=tuple(lines),
        warnings=() if shutil.which("cc") else (NO_COMPILER,),
    )  # fmt: skip


def _decide_extent(
    config: RunConfig, budget_bytes: int, chunk_bytes: int, *, auto: bool
) -> int:  # fmt: skip
    """Chunks that travel together. Raises ConfigError for an extent that cannot be."""
    why_one = ""
    if config.fidelity != "functional":
        why_one = f"a slot of --fidelity {config.fidelity} holds one chunk"
    elif config.aggregate != FLOAT32:
        why_one = f"--aggregate {config.aggregate} encodes one chunk at a time"
    asked = config.extent
    if asked is not None and asked % chunk_bytes:
        raise ConfigError(
            f"extent: {exact_size(asked)} is not a multiple of the chunk, "
            f"{exact_size(chunk_bytes)}; give "
            f"{exact_size(max(1, asked // chunk_bytes) * chunk_bytes)}"
        )
    if why_one:
        if asked not in (None, chunk_bytes):
            raise ConfigError(
                f"extent: {exact_size(asked)} asked for, but {why_one}; leave --extent out"
            )
        return 1
    if asked is not None:
        return asked // chunk_bytes
    if not auto:
        return 1
    in_arenas = node_in_arenas(config)
    most = chunk_for_links(config, EXTENT_AUTO_BYTES_MAX)
    return default_extent_chunks(
        budget_bytes, chunk_bytes,
        extent_of_switches(config, tree_of(config), most, in_arenas=in_arenas),
        world_size=config.workers, has_switch=not config.no_switch,
        in_arenas=in_arenas, levels=_levels(config),
    )  # fmt: skip


def _levels(config: RunConfig) -> int:
    """Levels of the tree of switches, whose sums the node makes again."""
    return depth(groups_of(tree_of(config)))


def node_plan(config: RunConfig, sizes: Sizes) -> NodePlan:
    """How each node divides its budget. Raises ConfigError, with the least that would do."""
    return plan_node(
        budget_bytes=sizes.memory_budget_bytes // config.optimizer_nodes,
        chunk_bytes=sizes.chunk_bytes,
        extent_chunks=sizes.extent_chunks,
        world_size=config.workers,
        has_switch=not config.no_switch,
        slot_count=own_slots(config),
        in_arenas=node_in_arenas(config),
        levels=_levels(config),
    )


def node_in_arenas(config: RunConfig) -> bool:
    """True if what the node's children push lies in shared memory of theirs."""
    return chosen_transport(config) == "shm"


def check_budget(budget_bytes: int) -> None:
    """Raises ConfigError for a budget that this machine can never give."""
    limit, whose = memory_limit()
    if budget_bytes > limit:
        raise ConfigError(
            f"memory_budget: {format_bytes(budget_bytes)} asked for, but the memory of {whose} is "
            f"{format_bytes(limit)}; give less, such as half of that: what does not fit stays on "
            "disk",
            code="E205",
        )


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
        groups=groups_of(tree),
    )  # fmt: skip
    connection = connection_of(config, job, node=nodes[0])
    if not config.no_switch:
        connection = _add_switches(supervisor, config, connection, endpoints, nodes[1:])
    write_connection(run.connect_file, connection)
    return connection


def _add_nodes(
    supervisor: Supervisor, config: RunConfig, job: JobSpec, *, listen: str, sizes: Sizes,
    state: Path | None, groups: Sequence[int],
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
            memory_budget_bytes=sizes.memory_budget_bytes // count, state=state, groups=groups,
        )
        for number in range(count)
    ]  # fmt: skip


def add_node(
    supervisor: Supervisor, config: RunConfig, job: JobSpec, number: int, *, listen: str,
    advertise: str | None, memory_budget_bytes: int, state: Path | None, groups: Sequence[int],
    key_name: str | None = None,
) -> str:  # fmt: skip
    """Start an optimizer node; where it listens. `state`: that of all nodes of the job."""
    count = config.optimizer_nodes
    if count > 1 and state is not None:
        state.parent.mkdir(parents=True, exist_ok=True)
        state.mkdir(mode=0o700, exist_ok=True)
    spec = node_spec(
        config, supervisor.run, job, listen=listen, advertise=advertise,
        memory_budget_bytes=memory_budget_bytes, groups=groups, number=number, key_name=key_name,
        state=None if state is None else node_directory(state, number, count),
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


def on_a_host(config: RunConfig) -> RunConfig:
    """The configuration of a switch of a host, which caches weights in half of the free memory."""
    if config.switch_memory_budget is not None:
        return config
    return replace(config, switch_memory_budget=max(BUDGET_AUTO_MAX, free_memory_bytes() // 2))


def leaf_of(place: Place, endpoint: str) -> Leaf:
    """A switch as its workers know it."""
    return Leaf(ranks=ranges_text(place.workers), endpoint=endpoint)


def tree_of(config: RunConfig) -> Tree:
    """The switches of a job. Raises ConfigError."""
    if config.hosts > 1:
        return _tree_of_hosts(config)
    if config.tree is None:
        return one_switch(config.workers)
    if config.no_switch:
        raise ConfigError("tree: there is no switch with --no-switch; leave one of them out")
    tree = read_tree(config.tree, workers=config.workers)
    for place in tree:
        links_of(config).below(tree.roles_below(place), f"link: [{place.name}] of {config.tree}")
    return tree


def _tree_of_hosts(config: RunConfig) -> Tree:
    for name in ("tree", "no_switch", "workers_max", "link", "fidelity", "slots"):
        if getattr(config, name) != KEYS[name].default:
            raise ConfigError(
                f"{name}: with --hosts {config.hosts} there is a switch on each host, for ranks of "
                f"its own, and the links are those of the hosts; leave {KEYS[name].flag} or "
                "--hosts out"
            )
    return tree_of_hosts(config.workers, config.hosts)


def groups_of(tree: Tree) -> tuple[int, ...]:
    """The sums of a tree, where there is more than one."""
    return tree.groups if len(tree) > 1 else ()


def own_slots(config: RunConfig) -> int:
    """Slots of the node's own switch that its memory budget must hold."""
    in_arenas = config.no_switch and chosen_transport(config) == "shm"
    return planned_slots(
        config.fidelity, config.slots, has_switch=not config.no_switch, in_arenas=in_arenas
    )


def check_fidelity(config: RunConfig) -> None:
    """Raises ConfigError if slots are asked for where none are fixed."""
    if config.slots is not None and config.fidelity == "functional":
        raise ConfigError(
            f"slots: {config.slots} asked for, but with functional fidelity a switch has as many "
            "as its memory allows; give --fidelity protocol too, or leave --slots out"
        )


def can_share() -> bool:
    """True if this machine allows shared memory at all."""
    try:
        check_arena(ARENA_BYTES_MIN)
    except ConfigError:
        return False
    return True


def chosen_transport(config: RunConfig) -> str:
    """`tcp`, `ipc` or `shm`: as asked; else shared memory on one host, if it can be had."""
    if config.bind is not None or config.hosts > 1 or config.transport == "tcp":
        return "tcp"
    if config.transport != "auto":
        return config.transport
    return "shm" if can_share() else "ipc"


def connection_of(config: RunConfig, job: JobSpec, *, node: str) -> Connection:
    """The connection of this job's members."""
    return Connection(
        **shared_fields(replace(job, retry=node_link(config).retry())),
        world_size=config.workers,
        node=node,
        reshard_after_forward=config.reshard_after_forward,
        connect_timeout_s=config.connect_timeout,
        aggregate=config.aggregate,
        tree="" if config.tree is None else groups_text(tree_of(config)),
        optimizer_nodes=config.optimizer_nodes,
        on_worker_loss=config.on_worker_loss,
        drop_after_s=config.drop_after,
        hosts=config.hosts,
    )


def new_job() -> int:
    """A number no other job has, by chance."""
    return secrets.randbits(48) + 1


def chunk_bytes_of(state: Path) -> int | None:
    """The chunk of an existing state; None if there is none. Raises ConfigError, StateError."""
    return read_config(state).chunk_bytes if (state / CONFIG_NAME).exists() else None


def free_memory_bytes() -> int:
    """Memory that could be allocated now: the machine's, or our control group's if less."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
            return min(free, _group_free_bytes(free))
    raise ConfigError("/proc/meminfo does not show the free memory; give --memory-budget")


def _group_free_bytes(default: int) -> int:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return default
    return max(0, int(limit) - used) if limit.isdecimal() else default
