"""The sizes of a job: memory budget, chunk and extent, as asked or as `auto` resolves them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from luwu.aggregate import FLOAT32
from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError
from luwu.base.machine_memory import free_memory_bytes, memory_limit
from luwu.base.quantities import exact_size, format_bytes
from luwu.launch.network import chosen_transport, chunk_for_links, groups_of, tree_of
from luwu.launch.nodes import check_nodes
from luwu.launch.switch_memory import extent_of_switches, widest_plan
from luwu.protocol.contribution import depth
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


def chunk_bytes_of(state: Path) -> int | None:
    """The chunk of an existing state; None if there is none. Raises ConfigError, StateError."""
    return read_config(state).chunk_bytes if (state / CONFIG_NAME).exists() else None
