"""The slots of a switch that serves several jobs: each open job has its own range.

One process has one pool, as one switch has one memory. A job gets a number of adjacent slots; if
they do not fit, ConfigError has the number that does. The range is free again when the job ends,
however it ends. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from luwu.base.errors import ConfigError
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.fixed_slots import PoolRange


class SlotRanges:
    """Ranges of `slot_count` slots, lent to jobs."""

    def __init__(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self._lock = threading.Lock()
        self._lent: list[PoolRange] = []
        """Ranges in use, in the order of their first slots."""

    @property
    def lent(self) -> list[PoolRange]:
        """The ranges of the jobs that are open, first slot first."""
        with self._lock:
            return list(self._lent)

    def take(self, asked: PoolRange) -> PoolRange:
        """Lend the first free range that is long enough. Raises ConfigError if there is none."""
        with self._lock:
            gaps = self._gaps()
            first = next((start for start, count in gaps if count >= asked.slot_count), None)
            if first is None:
                raise ConfigError(self._refusal(asked.slot_count, max(n for _, n in gaps)))
            found = replace(asked, first_slot=first)
            self._lent = sorted([*self._lent, found], key=lambda each: each.first_slot)
            return found

    def give_back(self, lent: PoolRange) -> None:
        """Release the range of a job that is over."""
        with self._lock:
            self._lent.remove(lent)

    def _gaps(self) -> list[tuple[int, int]]:
        """(first slot, slots) between the ranges that are lent; the last may be empty."""
        gaps, start = [], 0
        for each in self._lent:
            gaps.append((start, each.first_slot - start))
            start = each.first_slot + each.slot_count
        return [*gaps, (start, self.slot_count - start)]

    def _refusal(self, asked: int, most: int) -> str:
        count = len(self._lent)
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
