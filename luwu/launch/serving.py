"""Start switch and node for a job, and write down where to join it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from luwu.aggregate import make_aggregator
from luwu.aggregate.fixed_scale import FixedScale
from luwu.base.config import RunConfig, exact_size
from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from luwu.launch.network import links_of, node_link, retry_fields, switch_fidelity
from luwu.launch.roles import node_spec, switch_spec
from luwu.launch.run_directory import RunDirectory
from luwu.launch.sockets import private_directory
from luwu.nic.connection import Connection, write_connection
from luwu.transport import check_arena
from switch_emu.node.plan import default_chunk_bytes
from switch_emu.switch.capacity import planned_slots, slot_memory

STATE_DIRECTORY: Final = Path("luwu-state")
LOOPBACK: Final = "tcp://127.0.0.1:0"
MIB: Final = 1024 * 1024
ARENA_BYTES_MIN: Final = 64 * MIB
ARENA_BYTES_MAX: Final = 4096 * MIB
ARENA_CHUNKS_MIN: Final = 32
"""Chunks an arena must hold: an eighth of it is the window of pushes, with four of them."""


class Starter(Protocol):
    """Who starts the roles of a job: a supervisor, or a service that serves many."""

    @property
    def run(self) -> RunDirectory:
        """Where the job's records are."""

    private_directory: Path | None
    """Holds the sockets; removed at the end."""

    def add_role(self, role: str, spec: dict[str, Any]) -> str:
        """Start a role and wait until it listens; its endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What `auto` came to."""

    memory_budget_bytes: int
    chunk_bytes: int
    lines: tuple[str, ...]
    """What was decided, for people."""


def decide_sizes(config: RunConfig, state: Path | None) -> Sizes:
    """Memory budget and chunk: as asked, or half of the free memory and what fits it.

    An existing state keeps the chunk it was made with. Raises ConfigError, StateError.
    """
    check_fidelity(config)
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
    chunk = config.chunk
    made_with = None if state is None else chunk_bytes_of(state)
    if chunk is None and made_with is not None:
        chunk = made_with
        lines.append(f"chunk: {exact_size(chunk)}, as {state} was made with")
    elif chunk is None:
        chunk = default_chunk_bytes(
            budget, world_size=config.workers, has_switch=not config.no_switch,
            slot_count=slot_count,
        )  # fmt: skip
        lines.append(f"chunk: {exact_size(chunk)}, from the memory budget (--chunk)")
    return Sizes(memory_budget_bytes=budget, chunk_bytes=chunk, lines=tuple(lines))


def state_directory(config: RunConfig, default: Path) -> Path | None:
    """Where the node keeps its state; None: in RAM, for durability `none` without --state."""
    if config.state is not None:
        return config.state
    return None if config.durability == "none" else default


def serve(
    supervisor: Starter,
    config: RunConfig,
    *,
    state: Path | None,
    sizes: Sizes,
    say: Callable[[str], None],
) -> Connection:
    """Start node and switch on this host and write `connect.json`. Raises their errors."""
    run = supervisor.run
    for line in sizes.lines:
        say(line)
    chosen_aggregate(config)  # before anything is started
    job = config.job or new_job()
    transport = chosen_transport(config)
    if transport == "shm" and config.stripes > 1:
        raise ConfigError(
            f"stripes: {config.stripes} connections asked for, but shared memory has nothing to "
            "spread over them; give --transport tcp too, or leave --stripes out"
        )
    arena_bytes = 0
    if transport == "tcp":
        at_node, at_switch = LOOPBACK, config.bind or LOOPBACK
        if config.no_switch:
            at_node = at_switch
    else:
        directory = supervisor.private_directory = private_directory()
        at_switch, at_node = f"{transport}://{directory}/switch", f"{transport}://{directory}/node"
    if transport == "shm":
        arena_bytes = decide_arena_bytes(config.workers, sizes.chunk_bytes)
        say(
            f"gradient arenas: {config.workers} x {format_bytes(arena_bytes)} of shared memory, "
            "taken as it is used (--transport ipc shares none)"
        )
    node = supervisor.add_role(
        "node",
        node_spec(
            config,
            run,
            job=job,
            listen=at_node,
            memory_budget_bytes=sizes.memory_budget_bytes,
            chunk_bytes=sizes.chunk_bytes,
            arena_bytes=arena_bytes,
            state=state,
            advertise=config.advertise if config.no_switch else None,
        ),
    )
    connection = connection_of(
        config, job=job, node=node, chunk_bytes=sizes.chunk_bytes, arena_bytes=arena_bytes
    )
    if not config.no_switch:
        connection = add_switch(supervisor, config, connection, listen=at_switch)
    write_connection(run.connect_file, connection)
    return connection


def add_switch(
    supervisor: Starter, config: RunConfig, connection: Connection, *, listen: str
) -> Connection:
    """Start a switch before the node of `connection`."""
    check_fidelity(config)
    stripes = config.stripes if config.stripes > 1 else connection.stripes
    spec = switch_spec(
        config,
        supervisor.run,
        job=connection.job,
        world_size=connection.world_size,
        listen=listen,
        parent=connection.node,
        chunk_bytes=connection.chunk_bytes,
        arena_bytes=connection.arena_bytes,
        stripes=stripes,
        advertise=config.advertise,
        retry_first_ms=connection.retry_first_ms,
        retry_most_ms=connection.retry_most_ms,
        retry_ps_per_byte=connection.retry_ps_per_byte,
        slot_bytes=_slot_bytes(config, connection),
    )
    return replace(
        connection,
        switch=supervisor.add_role("switch", spec),
        stripes=stripes,
        **retry_fields(links_of(config).worker),
    )


def own_slots(config: RunConfig) -> int:
    """Slots of the node's own switch that its memory budget must hold."""
    in_arenas = config.no_switch and chosen_transport(config) == "shm"
    return planned_slots(
        switch_fidelity(config), config.slots, has_switch=not config.no_switch, in_arenas=in_arenas
    )


def check_fidelity(config: RunConfig) -> None:
    """Raises ConfigError if slots are asked for where none are fixed."""
    if config.fidelity == "timed" and not links_of(config).has_rate_or_delay:
        raise ConfigError(
            "fidelity: timed is protocol on links that take time, but none is asked for; give "
            "--link too, such as --link 100gbe, or --fidelity protocol"
        )
    if config.slots is not None and config.fidelity == "functional":
        raise ConfigError(
            f"slots: {config.slots} asked for, but in functional fidelity a switch has as many as "
            "its memory allows; give --fidelity protocol too, or leave --slots out"
        )


def _slot_bytes(config: RunConfig, connection: Connection) -> int:
    """Memory of slots that were asked for: all of it, up to a quarter of what is free."""
    if config.slots is None or connection.arena_bytes:
        return 0
    needed = slot_memory(
        config.slots, child_count=connection.world_size, chunk_bytes=connection.chunk_bytes
    )
    return min(needed, free_memory_bytes() // 4)


def chosen_transport(config: RunConfig) -> str:
    """`tcp`, `ipc` or `shm`: as asked; else shared memory on one host, if it can be had."""
    if config.bind is not None or config.transport == "tcp":
        return "tcp"
    if config.transport != "auto":
        return config.transport
    try:
        check_arena(ARENA_BYTES_MIN)
    except ConfigError:
        return "ipc"
    return "shm"


def chosen_aggregate(config: RunConfig) -> str:
    """The aggregator's name, with its scale. Raises ConfigError if it cannot be had."""
    spec = config.aggregate
    if config.aggregate_scale is not None:
        if spec != FixedScale.name:
            raise ConfigError(
                f"aggregate_scale: {spec} has no scale; give --aggregate {FixedScale.name} too, or "
                "leave --aggregate-scale out"
            )
        spec = f"{spec}:{config.aggregate_scale!r}"
    return make_aggregator(spec, config.workers).spec


def decide_arena_bytes(workers: int, chunk_bytes: int) -> int:
    """Shared memory of each worker for its gradients: its share of a quarter of what is free.

    A model's gradient may be larger: then pushes wait for room. Raises ConfigError.
    """
    share = free_memory_bytes() // 4 // workers
    arena_bytes = max(ARENA_CHUNKS_MIN * chunk_bytes, min(share, ARENA_BYTES_MAX))
    arena_bytes = -(-arena_bytes // MIB) * MIB
    check_arena(arena_bytes)
    return arena_bytes


def connection_of(
    config: RunConfig, *, job: int, node: str, chunk_bytes: int, arena_bytes: int = 0
) -> Connection:
    """What members of this job must know."""
    return Connection(
        job=job,
        world_size=config.workers,
        node=node,
        chunk_bytes=chunk_bytes,
        reshard_after_forward=config.reshard_after_forward,
        connect_timeout_s=config.connect_timeout,
        grace_s=config.grace,
        arena_bytes=arena_bytes,
        stripes=config.stripes,
        aggregate=chosen_aggregate(config),
        **retry_fields(node_link(config)),
    )


def new_job() -> int:
    """A number no other job has, by chance."""
    return secrets.randbits(48) + 1


def chunk_bytes_of(state: Path) -> int | None:
    """The chunk of an existing state; None if there is none. Raises ConfigError, StateError."""
    from switch_emu.store.config_file import decode_config
    from switch_emu.store.directory import CONFIG_NAME

    file = state / CONFIG_NAME
    if not file.is_file():
        return None
    return decode_config(file.read_bytes(), place=str(file)).chunk_bytes


def free_memory_bytes() -> int:
    """Memory that could be allocated now: the machine's, or our control group's if less."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
            return min(free, _group_free_bytes(free))
    raise ConfigError("/proc/meminfo does not say what is free; give --memory-budget")


def _group_free_bytes(default: int) -> int:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return default
    return max(0, int(limit) - used) if limit.isdecimal() else default
