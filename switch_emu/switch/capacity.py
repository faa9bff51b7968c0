"""The slots of a job in protocol fidelity: as many as requested, or as fit; and those lent to it.

A slot has two copies, and a copy holds a chunk of every child until they are added. SwitchML's
slots hold one running integer sum instead, but float sums must not depend on arrival (S3).

A process that serves several jobs has one pool, as one switch has one memory. A job gets a number
of adjacent slots; if they do not fit, ConfigError has the number that does. The range is free again
when the job ends, however it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.fixed_slots import COPIES, PoolRange

SLOTS_AUTO_MAX: Final = 256
"""Default of a job: the outstanding packets of SwitchML (256)."""
POOL_SLOTS: Final = 8192
"""Default of a process that serves several jobs: SwitchML's pool (8192 slots x 2)."""


def slot_memory(slot_count: int, *, child_count: int, chunk_bytes: int) -> int:
    """Maximum bytes of so many slots."""
    return slot_count * COPIES * child_count * chunk_bytes


def pool_range(
    slots: int | None, *, child_count: int, chunk_bytes: int, memory_bytes: int
) -> PoolRange:
    """A job's slots, within the given memory; None: as many as fit, up to 256.

    Raises ConfigError with the number that fits.
    """
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
    return PoolRange(slot_count=slots or min(most, SLOTS_AUTO_MAX), slot_bytes=chunk_bytes)


def with_slots(
    limits: SwitchLimits, fidelity: str, slots: int | None, *, child_count: int, chunk_bytes: int
) -> SwitchLimits:
    """The limits of a switch at a fidelity. Raises ConfigError."""
    if fidelity == "functional":
        return limits
    found = pool_range(
        slots, child_count=child_count, chunk_bytes=chunk_bytes, memory_bytes=limits.slot_bytes_max
    )
    return replace(limits, slots=found)


def planned_slots(
    fidelity: str, slots: int | None, *, has_switch: bool, in_arenas: bool
) -> int:  # fmt: skip
    """Slots in the memory budget of a node: those of its own switch.

    0 if contributions lie in shared memory of the workers (`in_arenas`).
    """
    return 0 if has_switch or in_arenas or fidelity == "functional" else slots or 1


class SlotRanges:
    """Ranges of `slot_count` slots, lent to jobs."""

    def __init__(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self._lock = threading.Lock()
        self.lent: list[PoolRange] = []
        """Ranges of the jobs that are open, in the order of their first slots."""

    def take(self, asked: PoolRange) -> PoolRange:
        """Lend the first free range that is long enough. Raises ConfigError if there is none."""
        with self._lock:
            gaps = self._gaps()
            first = next((start for start, count in gaps if count >= asked.slot_count), None)
            if first is None:
                raise ConfigError(self._refusal(asked.slot_count, max(n for _, n in gaps)))
            found = replace(asked, first_slot=first)
            self.lent = sorted([*self.lent, found], key=lambda each: each.first_slot)
            return found

    def give_back(self, lent: PoolRange) -> None:
        """Release the range of a job that is over."""
        with self._lock:
            self.lent.remove(lent)

    def _gaps(self) -> list[tuple[int, int]]:
        """(first slot, slots) between the ranges that are lent; the last may be empty."""
        gaps, start = [], 0
        for each in self.lent:
            gaps.append((start, each.first_slot - start))
            start = each.first_slot + each.slot_count
        return [*gaps, (start, self.slot_count - start)]

    def _refusal(self, asked: int, most: int) -> str:
        count = len(self.lent)
        others = {0: "", 1: "; 1 job has the rest"}.get(count, f"; {count} jobs have the rest")
        give = f"give --slots {most}" if most else "wait until one of them ends"
        return (
            f"slots: {asked} asked for, but {most} of this switch's {self.slot_count} are free "
            f"side by side{others}: {give}, or start it with more"
        )


@contextmanager
def lent_range(ranges: SlotRanges | None, limits: SwitchLimits) -> Iterator[SwitchLimits]:
    """The limits with a range of the switch's slots, until the job is over.

    None: the switch serves this job alone. Raises ConfigError if too few slots are free.
    """
    if ranges is None or limits.slots is None:
        yield limits
        return
    found = ranges.take(limits.slots)
    try:
        yield replace(limits, slots=found)
    finally:
        ranges.give_back(found)
