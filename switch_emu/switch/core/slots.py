"""Aggregation slots: a bounded pool in which the contributions to an extent meet.

This is the pool of functional fidelity, a budget of bytes; `fixed_slots.py` has that of protocol
fidelity; both have the same methods.

A slot holds what each child contributed to one (step, part, extent) until all are in; then they are
summed in rank order, in one pass, and leave as one. Nothing is added before all are there: the sum
does not depend on arrival, and an incomplete slot can still be handed on raw. Pure: payloads are
opaque and nothing is added here.

    absent  -> FILLING  `room`      first contribution, if the pool has room for the whole slot
    FILLING -> FULL     `Slot.add`  the last missing child
    FULL    -> absent   `arrived`   the parent has received the sum
    FILLING -> absent   `give_up`   handed on raw; `forget`: the attempt was aborted

Invariants; the tests cite them by number:

    S1  A rank counts once in a slot, however often its message arrives.
    S2  Contributions of different (step, part, extent) never meet.
    S3  What a full slot hands out is in rank order, whatever the order of arrival.
    S4  The bytes of all open slots, each counted as if every child contributed as much as the
        largest contribution to it, stay within the pool.
    S5  An extent is summed in one place or the other, never in both: one that finds no slot goes
        on raw, all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from luwu.protocol.actions import Payload
from luwu.protocol.contribution import Contribution, merge, total_weight
from luwu.wire.description import Description

SlotKey = tuple[int, int, int]
"""(step, part, extent)."""


@dataclass(slots=True)
class Slot:
    """One extent on its way to a sum."""

    ranks: int
    """Those that are to contribute."""
    reserved_bytes: int = 0
    contributors: int = 0
    contributions: list[Contribution] = field(default_factory=list)
    full: bool = False

    @property
    def weight(self) -> float:
        """Sum of the contributors' weights, in rank order."""
        return total_weight(self.contributions)

    def add(self, contribution: Contribution) -> bool:
        """Add a child's contribution; False if it was there already (S1). Raises OverlapError."""
        if not merge(self.contributors, contribution.contributors):
            return False
        self.contributors |= contribution.contributors
        self.contributions.append(contribution)
        self.full = self.contributors == self.ranks
        return True


def oldest_unfilled(
    slots: Iterable[tuple[SlotKey, Slot]], missing: Callable[[list[int]], str]
) -> str:  # fmt: skip
    """The first slot that is not full and the ranks it misses, for people; or nothing."""
    for (step, _, extent), slot in slots:
        if not slot.full:
            there = [c.contributors for c in slot.contributions]
            return f"step {step}: extent {extent} of ranks {missing(there)}"
    return ""


class SlotPool:
    """All open slots of a switch, within a budget of bytes."""

    answers_when_summed = False
    """A child is sent `Received` when its extent is summed and on its way, not when it is held."""

    def __init__(self, *, ranks: int, child_count: int, bytes_max: int) -> None:
        self._ranks = ranks
        self._child_count = child_count
        self._bytes_max = bytes_max
        self._slots: dict[SlotKey, Slot] = {}
        self._summed: set[SlotKey] = set()
        """Extents whose sum was handed out: what still comes for them is a repetition (S1)."""
        self.bytes_used = 0
        self.slots_used_peak = 0
        self.opened_count = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[SlotKey]:
        """All open slots, oldest first; those of this instant, so they may be freed on the way."""
        return iter(list(self._slots))

    def get(self, key: SlotKey) -> Slot | None:
        """The open slot of an extent."""
        return self._slots.get(key)

    def __getitem__(self, key: SlotKey) -> Slot:
        return self._slots[key]

    def is_ahead(self, ranks: int) -> bool:
        """True if a child is in every open slot that is not full, and there is a slot (S6)."""
        slots = self._slots.values()
        # Full slots wait for the parent alone; without a slot there is nothing to be ahead of.
        return bool(slots) and all(each.full or each.contributors & ranks for each in slots)

    def room(self, key: SlotKey, contribution_bytes: int) -> Slot | None:
        """The slot of an extent, opened with room for all children if it must be, or grown where
        the first had no gradient; None if the pool is full (S4)."""
        slot = self._slots.get(key)
        more_bytes = contribution_bytes * self._child_count
        more_bytes -= 0 if slot is None else slot.reserved_bytes
        if slot is not None and more_bytes <= 0:
            return slot
        if self.bytes_used + more_bytes > self._bytes_max:
            return None
        if slot is None:
            slot = self._slots[key] = Slot(self._ranks)
            self.opened_count += 1
            self.slots_used_peak = max(self.slots_used_peak, len(self._slots))
        self.bytes_used += more_bytes
        slot.reserved_bytes += more_bytes
        return slot

    def hand_out(self, key: SlotKey, sum_bytes: int) -> None:
        """The sum has taken the place of the contributions: only its bytes stay reserved."""
        slot = self._slots[key]
        slot.contributions = []
        self._summed.add(key)
        self.bytes_used += sum_bytes - slot.reserved_bytes
        slot.reserved_bytes = sum_bytes

    def free(self, key: SlotKey) -> Slot:
        """Close a slot and hand out what it held."""
        slot = self._slots.pop(key)
        self.bytes_used -= slot.reserved_bytes
        assert self.bytes_used >= 0 if self._slots else self.bytes_used == 0, "S4"
        return slot

    def arrived(self, key: SlotKey) -> None:
        """The parent has the sum: close the slot, if it is not closed."""
        if key in self._slots:
            self.free(key)

    def give_up(self, key: SlotKey) -> list[Contribution]:
        """Hand out what an extent holds that goes on raw, and close its slot."""
        return self.free(key).contributions if key in self._slots else []

    def serve(self, ranks: int) -> None:
        """A slot is full with these, in the attempt that begins."""
        self._ranks = ranks

    def learn(self, job: Description) -> None:
        """Nothing here depends on what is pushed."""

    def passes(self, key: SlotKey, child: int) -> None:
        """Nothing here depends on which sums a child has received."""

    def is_summed(self, key: SlotKey) -> bool:
        """True if the sum of an extent was handed out, its slot freed since or not."""
        return key in self._summed

    def forget(self, step: int | None = None) -> list[Payload | None]:
        """Forget the sums of a decided step, or close all slots; what they held."""
        self._summed = {key for key in self._summed if step is not None and key[0] != step}
        if step is not None:
            return []
        return [c.payload for key in self for c in self.free(key).contributions]

    def counts(self) -> dict[str, int]:
        """Counters and current sizes."""
        return {
            "slots_now": len(self),
            "slots_peak": self.slots_used_peak,
            "slots_opened_count": self.opened_count,
            "slot_bytes_now": self.bytes_used,
            "slot_bytes_limit": self._bytes_max,
        }

    def waits_for(self, missing: Callable[[list[int]], str]) -> str:
        """The oldest slot that is not full and the ranks it misses, for people; or nothing."""
        return oldest_unfilled(self._slots.items(), missing)
