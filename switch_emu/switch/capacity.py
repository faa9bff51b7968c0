"""The slots of a job in protocol fidelity: as many as requested, or as fit; and those lent to it.

A slot has two copies, and a copy holds a chunk of every child until they are added. SwitchML's
slots hold one running integer sum instead, but float sums must not depend on arrival (S3).

A process that serves several jobs has one pool, as one switch has one memory. Each job has a number
of its slots while it is open; if too few are free, ConfigError has the number that is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.fixed_slots import COPIES, PoolSize

SLOTS_AUTO_MAX: Final = 256
"""Default of a job: the outstanding packets of SwitchML (256)."""
POOL_SLOTS: Final = 8192
"""Default of a process that serves several jobs: SwitchML's pool (8192 slots x 2)."""


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


class SharedSlots:
    """The slots of a process that serves several jobs: each has some while it is open."""

    def __init__(self, slot_count: int) -> None:
        self._slot_count = slot_count
        self._lock = threading.Lock()
        self._lent: list[PoolSize] = []
        """Of each job that is open."""

    @contextmanager
    def lent(self, asked: PoolSize) -> Iterator[None]:
        """Lend slots to a job until it is over, however it ends. Raises ConfigError if too few are
        free."""
        with self._lock:
            free = self._slot_count - sum(each.slot_count for each in self._lent)
            if asked.slot_count > free:
                raise ConfigError(self._refusal(asked.slot_count, free))
            self._lent.append(asked)
        try:
            yield
        finally:
            with self._lock:
                self._lent.remove(asked)

    def _refusal(self, asked: int, free: int) -> str:
        count = len(self._lent)
        others = {0: "", 1: "; 1 job has the rest"}.get(count, f"; {count} jobs have the rest")
        give = f"give --slots {free}" if free else "wait until one of them ends"
        return (
            f"slots: {asked} asked for, but {free} of this switch's {self._slot_count} are free"
            f"{others}: {give}, or start it with more"
        )


def lent(shared: SharedSlots | None, limits: SwitchLimits) -> AbstractContextManager[None]:
    """The slots of a job, lent to it where its switch serves several. Raises ConfigError."""
    if shared is None or limits.slots is None:
        return nullcontext()
    return shared.lent(limits.slots)
