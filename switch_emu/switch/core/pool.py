"""The interface of a pool of slots: each fidelity has a pool of its own. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from luwu.protocol.actions import Payload
from luwu.protocol.contribution import Contribution
from luwu.wire.description import Description
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.fixed_slots import FixedSlotPool
from switch_emu.switch.core.slots import Slot, SlotKey, SlotPool


class Pool(Protocol):
    """The choice of a slot for an extent, and of when its children are sent `Received`."""

    answers_when_summed: bool
    """A child is sent `Received` when its extent is summed and on its way, not when it is held."""

    def serve(self, ranks: int) -> None:
        """Which ranks make a slot full, in the attempt that begins: all slots are empty."""
        ...

    def learn(self, job: Description) -> None:
        """The job's description: what will be pushed; known before the first push."""
        ...

    def __len__(self) -> int: ...

    def is_ahead(self, ranks: int) -> bool:
        """True if a child is in every open slot that is not full, and a slot will become free."""
        ...

    def passes(self, key: SlotKey, child: int) -> None:
        """A child pushes an extent that was not summed yet."""
        ...

    def room(self, key: SlotKey, contribution_bytes: int) -> Slot | None:
        """The slot of an extent, opened or grown if it must be; None if there is no room."""
        ...

    def get(self, key: SlotKey) -> Slot | None:
        """The open slot of an extent, until the parent has its sum."""
        ...

    def __getitem__(self, key: SlotKey) -> Slot: ...

    def contribute(self, slot: Slot, contribution: Contribution) -> bool:
        """Add a contribution; False if it was there already. Raises OverlapError."""
        ...

    def hand_out(self, key: SlotKey, sum_bytes: int) -> None:
        """The sum has taken the place of the contributions."""
        ...

    def arrived(self, key: SlotKey) -> None:
        """The parent has the sum."""
        ...

    def give_up(self, key: SlotKey) -> list[Contribution]:
        """An extent goes on raw: what its slot held, if it has one."""
        ...

    def is_summed(self, key: SlotKey) -> bool:
        """True if what comes for an extent is a repetition: its sum was handed out."""
        ...

    def forget(self, step: int | None = None) -> list[Payload | None]:
        """A step is decided, or (None) the attempt is over: what was held."""
        ...

    def counts(self) -> dict[str, int]:
        """Counters and current sizes (`switch_emu.process.counting`)."""
        ...

    def slot_counts(self) -> dict[str, list[int]]:
        """The same of each slot; nothing where a slot is no place."""
        ...

    def waits_for(self, missing: Callable[[list[int]], str]) -> str:
        """The incomplete slots, as text; or nothing."""
        ...


def make_pool(limits: SwitchLimits, *, ranks: int, child_count: int) -> Pool:
    """The pool of a switch's fidelity."""
    if limits.slots is not None:
        return FixedSlotPool(ranks=ranks, pool=limits.slots)
    return SlotPool(ranks=ranks, child_count=child_count, bytes_max=limits.slot_bytes_max)
