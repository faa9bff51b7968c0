"""A switch's memory plan: the uses of `--switch-memory-budget`, fixed before the run. Pure.

Where its children share their memory with it, what they push waits in arenas of theirs, and so the
budget says how large these are. Half of an arena may wait in slots (`SwitchLimits.in_arenas`). For
k extents of each of W children:

                      arenas                               sockets
    slots             k W extents, in the children's       k W extents, ours
    under way to us   part of the other half               k W, 16 MiB a child at most
    sums to the node  2 k, an arena of ours                with the slots
    copies, one sum   2 k                                  the rest

What is left of the budget caches weights (`core/weights_down.py`). The memory of nothing here
follows that of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.limits import MIB
from luwu.base.quantities import format_bytes

BUDGET_AUTO_MAX: Final = 512 * MIB
EXTENTS_AUTO: Final = 8
"""Extents of every child that gradients have room for: design note 0039."""
EXTENTS_MIN: Final = 2
"""Extents of every child without which there is no plan: one is summed while the next comes, and a
child that writes a third finds room in its arena."""
_EXTENTS_ROOMY: Final = 4
"""A default extent is short enough for so many of every child."""
EXTENT_BYTES_MIN: Final = 4 * MIB
"""The default counts smaller extents as so large: a window of few bytes does not fill a link, and a
worker that is a unit of the model ahead of the others finds slots."""
_WINDOW_BYTES_MAX: Final = 16 * MIB
_PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPlan:
    """Bytes of the budget, by use."""

    budget_bytes: int
    arena_bytes: int
    """Shared memory of each child, and of the switch for its sums; 0: over sockets."""
    slots_bytes: int
    """Contributions that wait for others; in arenas they lie in the children's."""
    window_bytes: int
    """Credit of each child: what it may have under way."""
    copies_bytes: int
    """Weights kept for children that have not asked yet."""
    cache_bytes: int
    """Weights that pulls are answered with, at most."""

    def line(self) -> str:
        """The plan as text."""
        uses = {
            f"slots{' in the arenas of workers' * (self.arena_bytes > 0)}": self.slots_bytes,
            "sums": self.arena_bytes,
            "copies of weights": self.copies_bytes,
            "cached weights": self.cache_bytes,
        }
        text = ", ".join(f"{name} {format_bytes(count)}" for name, count in uses.items() if count)
        return f"memory budget of a switch {format_bytes(self.budget_bytes)}: {text}"


def plan_switch(
    *, budget_bytes: int | None, child_count: int, extent_bytes: int, in_arenas: bool,
    slots_bytes: int = 0,
) -> SwitchPlan:  # fmt: skip
    """Divide the budget; None: 512 MiB, or what fixed slots or `EXTENTS_MIN` extents need.

    Gradients take what `EXTENTS_AUTO` extents of every child need, of `EXTENT_BYTES_MIN` at least,
    and the cache what is left. `slots_bytes`: of fixed slots, beside which nothing is cached.
    Raises ConfigError, with the least that would do, if there is no room for `EXTENTS_MIN` of each.
    """
    least_slots = EXTENTS_MIN * child_count * extent_bytes
    least = _budget_for(least_slots, child_count, extent_bytes, in_arenas=in_arenas)
    enough = budget_to_cache(
        0, child_count=child_count, extent_bytes=extent_bytes, in_arenas=in_arenas
    )
    if slots_bytes:
        fixed = _budget_for(slots_bytes, child_count, extent_bytes, in_arenas=in_arenas)
        enough = max(min(BUDGET_AUTO_MAX, enough), fixed)
    if budget_bytes is None:
        budget_bytes = max(least, enough if slots_bytes else BUDGET_AUTO_MAX)
    if budget_bytes < least:
        raise ConfigError(
            f"switch_memory_budget: {format_bytes(budget_bytes)} is too small for {EXTENTS_MIN} "
            f"extents of {format_bytes(extent_bytes)} from each of {child_count} children; give at "
            f"least {-(-least // 1024)}KiB, or a smaller --extent or --chunk",
            code="E205",
        )
    cache_bytes = 0 if slots_bytes else max(0, budget_bytes - enough)
    gradients_bytes = budget_bytes - cache_bytes
    if in_arenas:
        arena_bytes = 2 * gradients_bytes // (child_count + 4) // _PAGE_BYTES * _PAGE_BYTES
        slots_bytes = arena_bytes // 2 * child_count
        window_bytes = max(extent_bytes, arena_bytes // 8)
        copies_bytes = gradients_bytes - slots_bytes - arena_bytes
    else:
        arena_bytes = 0
        window_bytes = gradients_bytes // (2 * child_count + 2)
        window_bytes = max(extent_bytes, min(_WINDOW_BYTES_MAX, window_bytes))
        rest = gradients_bytes - child_count * window_bytes - extent_bytes  # a sum that is made
        slots_bytes = rest * child_count // (child_count + 1)
        copies_bytes = rest - slots_bytes
    return SwitchPlan(
        budget_bytes=budget_bytes, arena_bytes=arena_bytes, slots_bytes=slots_bytes,
        window_bytes=window_bytes, copies_bytes=copies_bytes, cache_bytes=cache_bytes,
    )  # fmt: skip


def budget_to_cache(
    weights_bytes: int, *, child_count: int, extent_bytes: int, in_arenas: bool
) -> int:  # fmt: skip
    """The least budget that caches so many bytes of weights beside its gradients."""
    many = EXTENTS_AUTO * child_count * max(extent_bytes, EXTENT_BYTES_MIN)
    return weights_bytes + _budget_for(many, child_count, extent_bytes, in_arenas=in_arenas)


def roomy_extent_bytes(
    extent_bytes: int, *, budget_bytes: int | None, child_count: int, in_arenas: bool
) -> int:  # fmt: skip
    """The extent, halved until a budget has room for `_EXTENTS_ROOMY` of every child; None: the
    default of `plan_switch`."""
    most = BUDGET_AUTO_MAX if budget_bytes is None else budget_bytes
    while extent_bytes > 1:
        slots_bytes = _EXTENTS_ROOMY * child_count * extent_bytes
        if _budget_for(slots_bytes, child_count, extent_bytes, in_arenas=in_arenas) <= most:
            break
        extent_bytes //= 2
    return extent_bytes


def _budget_for(
    slots_bytes: int, child_count: int, extent_bytes: int, *, in_arenas: bool
) -> int:  # fmt: skip
    """The least budget with so many bytes of slots."""
    share = -(-slots_bytes // child_count)
    if in_arenas:
        share = -(-2 * share // _PAGE_BYTES) * _PAGE_BYTES // 2
        return share * (child_count + 4)
    windows = child_count * max(extent_bytes, min(_WINDOW_BYTES_MAX, share))
    return (child_count + 1) * share + windows + extent_bytes
