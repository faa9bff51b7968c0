"""The slots of a job in protocol fidelity: as many as requested, or as fit.

A slot has two copies, and a copy holds a chunk of every child until they are added. SwitchML's
slots hold one running integer sum instead, but float sums must not depend on arrival (S3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.fixed_slots import COPIES, PoolSize

SLOTS_AUTO_MAX: Final = 256
"""Default of a job: the outstanding packets of SwitchML (256)."""


def slot_memory(slot_count: int, *, child_count: int, chunk_bytes: int) -> int:
    """Maximum bytes of so many slots."""
    return slot_count * COPIES * child_count * chunk_bytes


def with_slots(
    limits: SwitchLimits, fidelity: str, slots: int | None, *, child_count: int, chunk_bytes: int
) -> SwitchLimits:
    """The limits of a switch at a fidelity, within its memory for slots.

    `slots`: of a job; None: as many as fit, up to 256. Raises ConfigError with the number that
    fits.
    """
    if fidelity == "functional":
        return limits
    memory_bytes = limits.slot_bytes_max
    each = slot_memory(1, child_count=child_count, chunk_bytes=chunk_bytes)
    most = memory_bytes // each
    asked = slots or 1
    if asked > most:
        rest = f"give --slots {most}, or a smaller --chunk" if most else "give a smaller --chunk"
        raise ConfigError(
            f"slots: {asked} {'slot' if asked == 1 else 'slots'} of two copies hold up to "
            f"{format_bytes(asked * each)} (chunks of {format_bytes(chunk_bytes)} from "
            f"{child_count} children); the switch has {format_bytes(memory_bytes)} for them: {rest}"
        )
    count = slots or min(most, SLOTS_AUTO_MAX)
    return replace(limits, slots=PoolSize(slot_count=count, slot_bytes=chunk_bytes))


def planned_slots(
    fidelity: str, slots: int | None, *, has_switch: bool, in_arenas: bool
) -> int:  # fmt: skip
    """Slots in the memory budget of a node: those of its own switch.

    0 if contributions lie in shared memory of the workers (`in_arenas`).
    """
    return 0 if has_switch or in_arenas or fidelity == "functional" else slots or 1
