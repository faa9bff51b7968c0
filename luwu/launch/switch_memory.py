"""The memory plan of a job's switches, by its configuration (`--switch-memory-budget`)."""

from __future__ import annotations

from dataclasses import replace

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError
from luwu.base.limits import POOL_BYTES_DEFAULT
from luwu.base.machine_memory import free_memory_bytes, memory_limit
from luwu.base.quantities import format_bytes
from luwu.base.tree import Tree
from switch_emu.switch.capacity import SLOTS_AUTO_MAX, slot_memory
from switch_emu.switch.plan import BUDGET_AUTO_MAX, SwitchPlan, plan_switch, roomy_extent_bytes


def switch_plan(
    config: RunConfig, *, child_count: int, extent_bytes: int, in_arenas: bool
) -> SwitchPlan:  # fmt: skip
    """The plan of a switch with so many children. Raises ConfigError.

    `in_arenas`: what the children push lies in shared memory of theirs.
    """
    budget_bytes = config.switch_memory_budget
    if budget_bytes is not None and config.no_switch:
        raise ConfigError(
            f"switch_memory_budget: {format_bytes(budget_bytes)} asked for, but with --no-switch "
            "the node adds what workers push, in --memory-budget; leave one of them out"
        )
    plan = plan_switch(
        budget_bytes=budget_bytes, child_count=child_count, extent_bytes=extent_bytes,
        in_arenas=in_arenas, slots_bytes=_fixed_slots_bytes(config, child_count, extent_bytes),
    )  # fmt: skip
    limit, whose = memory_limit()
    if plan.budget_bytes > limit:
        raise ConfigError(
            f"switch_memory_budget: {format_bytes(plan.budget_bytes)} needed, but the memory of "
            f"{whose} is {format_bytes(limit)}; give a smaller --switch-memory-budget, --extent or "
            "--chunk, or fewer --slots",
            code="E205",
        )
    return plan


def widest_plan(
    config: RunConfig, tree: Tree, extent_bytes: int, *, in_arenas: bool
) -> SwitchPlan:  # fmt: skip
    """The plan of the switch with most children, by which the arenas of a job are made.

    Raises ConfigError.
    """
    return switch_plan(
        config, child_count=_widest(tree), extent_bytes=extent_bytes, in_arenas=in_arenas
    )


def extent_of_switches(
    config: RunConfig, tree: Tree, extent_bytes: int, *, in_arenas: bool
) -> int:  # fmt: skip
    """The extent, or a shorter one for which the switch with most children has room."""
    if config.no_switch:
        return extent_bytes
    return roomy_extent_bytes(
        extent_bytes, budget_bytes=config.switch_memory_budget, child_count=_widest(tree),
        in_arenas=in_arenas,
    )  # fmt: skip


def _widest(tree: Tree) -> int:
    return max(len(tree.children(place)) for place in tree)


def _fixed_slots_bytes(config: RunConfig, child_count: int, extent_bytes: int) -> int:
    """Memory of the slots of protocol fidelity: those asked for, or the default where it fits."""
    if config.fidelity == "functional":
        return 0
    each = slot_memory(1, child_count=child_count, chunk_bytes=extent_bytes)
    if config.slots is not None:
        return config.slots * each
    return max(1, min(SLOTS_AUTO_MAX, POOL_BYTES_DEFAULT // each)) * each


def on_a_host(config: RunConfig) -> RunConfig:
    """The configuration of a switch of a host, which caches weights in half of the free memory."""
    if config.switch_memory_budget is not None:
        return config
    return replace(config, switch_memory_budget=max(BUDGET_AUTO_MAX, free_memory_bytes() // 2))
