"""The slots of a programmable switch: a fixed number, two copies each, and who moved on.

In place of `SlotPool` where the switch runs in protocol fidelity. No extent has a choice of memory:
its slot and its copy follow from its *turn*, a number that every child can compute. Turns count the
extents in the order in which a backward makes them (units from the last to the first, inside a unit
upwards), pass after pass; turn n uses slot n mod S, and copy (n div S) mod 2 of it. So consecutive
users of a slot take different copies, and while one is summed the result of the other stays, for
children that missed it. Learns from SwitchML (Sapio et al., NSDI 2021, section 4.3). Pure.

A copy, its states, and the only method that makes each change:

    FREE    -> FILLING  `room`        first contribution to an extent whose turn it is
    FILLING -> SUMMED   `hand_out`    the sum is on its way to the parent
    SUMMED  -> DONE     `arrived`     the parent has it; the copy knows whose sum it was
    DONE    -> FREE     `passes`      every child has used the other copy since: it has moved on
    any     -> FREE     `give_up`, `forget`   handed on raw; its step is decided, or aborted

Invariants; the tests cite them by number (S1 to S3 are those of `slots.py` and hold here too):

    F1  An extent is only ever in the slot and copy of its turn; consecutive users of a slot take
        different copies.
    F2  A copy is given to another extent only when it is free: never while it lacks a child, while
        the parent lacks its sum, or while a child of it may still repeat its contribution.
    F3  A contribution to one copy, whether it finds room or not, takes its sender's bit out of the
        other copy, if that is summed; of one that is filling, no bit is ever taken out.
    F4  No contribution is larger than a slot, so what the pool holds is at most slots x 2 copies x
        children x bytes of a slot.
    F5  A push of an extent whose copy is summed or done is known to be a repetition.

What finds its copy taken travels on raw (S5). That a slot passes from turn n to turn n + S
when the result of n is out is what bounds a child: its window is as many bytes as S slots have.
Extents are of different sizes, so a child with small ones may be more than S turns ahead; then its
bits say too early that it has moved on, an extent may be raw that need not be, and a repetition
that comes very late is summed or handed on once more. The parent knows what it has and drops it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from luwu.aggregate import make_aggregator
from luwu.layout import SUM_BYTES, Layout
from luwu.protocol.actions import Payload
from luwu.protocol.contribution import Contribution
from luwu.wire.description import Description
from switch_emu.switch.core.slots import Slot, SlotKey, oldest_unfilled

COPIES = 2
NO_TURN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """The slots that a job has."""

    slot_count: int
    slot_bytes: int
    """Bytes of one contribution: a full extent in float32. One that an aggregator encodes counts by
    its elements: with exponents, it takes 0.1 % more."""

    @property
    def window_bytes(self) -> int:
        """As much as all slots take at once, of one child: the self-clocked window."""
        return self.slot_count * self.slot_bytes


def push_turns(layout: Layout) -> tuple[array[int], int]:
    """The turn of each extent within a pass (`NO_TURN`: it is never pushed), and how many they are.

    In the order in which a backward ends: units from the last to the first.
    """
    turns = array("q", [NO_TURN]) * len(layout.extents)
    count = 0
    for unit in reversed(range(len(layout.units))):
        for extent in layout.trainable_extents(unit):
            turns[extent] = count
            count += 1
    return turns, count


@dataclass(slots=True)
class SlotCopy:
    """One of the two copies of a slot."""

    key: SlotKey | None = None
    """Its extent; of a finished one too, until the slot is reused."""
    slot: Slot | None = None
    """Its content; None once the parent has the sum."""
    is_summed: bool = False
    behind: int = 0
    """Ranks of the children that may not have received the sum yet."""

    @property
    def is_free(self) -> bool:
        """True if the next extent may take it (F2)."""
        # Its sum is with the parent, and no child may still repeat its contribution.
        return self.key is None or (self.is_summed and self.slot is None and not self.behind)

    def reset(self, key: SlotKey | None = None, slot: Slot | None = None) -> None:
        """Give it to another extent, or to none."""
        self.key, self.slot, self.is_summed, self.behind = key, slot, False, 0


class FixedSlotPool:
    """See the module. `ranks` is the bitmap of all ranks, of which every child speaks for some."""

    answers_when_summed = True

    def __init__(self, *, ranks: int, pool: PoolSize) -> None:
        self.size = pool
        self._ranks, self._world_size = ranks, ranks.bit_count()
        self._slots = [(SlotCopy(), SlotCopy()) for _ in range(pool.slot_count)]
        self._open: dict[SlotKey, SlotCopy] = {}
        """Copies that hold something, oldest first."""
        self._turns: array[int] = array("q")
        self._turns_count = 0
        self._contribution_bytes_max = pool.slot_bytes
        self.slots_used_peak = 0
        self.copies_used_peak = 0
        self.opened_count = 0
        """Extents that found their copy free."""
        self._slots_used = 0

    def is_ahead(self, ranks: int) -> bool:
        """No child waits for a fixed slot: each is the place of some extents."""
        return False

    def __len__(self) -> int:
        return len(self._open)

    def serve(self, ranks: int) -> None:
        """A slot is full with these, in the attempt that begins."""
        self._ranks = ranks

    def learn(self, job: Description) -> None:
        """Set the extents that are pushed, in order; the same for the whole job."""
        if not self._turns_count:
            self._turns, self._turns_count = push_turns(job.layout)
            aggregator = make_aggregator(job.aggregate, self._world_size)
            elems = self.size.slot_bytes // SUM_BYTES
            self._contribution_bytes_max = aggregator.encoded_bytes(elems)

    def place(self, key: SlotKey) -> tuple[int, int] | None:
        """Slot and copy of an extent (F1); None if it is none that is pushed."""
        step, part, extent = key
        if extent >= len(self._turns) or self._turns[extent] == NO_TURN:
            return None
        turn = (step + part) * self._turns_count + self._turns[extent]
        rounds, slot = divmod(turn, self.size.slot_count)
        return slot, rounds % COPIES

    def passes(self, key: SlotKey, child: int) -> None:
        """A child pushes what was not summed: it has moved on from the other copy (F3)."""
        place = self.place(key)
        if place is not None:
            other = self._slots[place[0]][1 - place[1]]
            if other.is_summed:
                other.behind &= ~child

    def room(self, key: SlotKey, contribution_bytes: int) -> Slot | None:
        """The slot of an extent, opened if it must be; None if its copy is taken (F2, F4)."""
        copy = self._copy(key)
        if copy is None or contribution_bytes > self._contribution_bytes_max:
            return None
        if copy.key == key:
            return copy.slot
        if not copy.is_free:
            return None
        slot = Slot(self._ranks, self.size.slot_bytes)
        copy.reset(key, slot)
        self._open[key] = copy
        self.opened_count += 1
        self._slots_used += not self._has_other_open(key)
        self.slots_used_peak = max(self.slots_used_peak, self._slots_used)
        self.copies_used_peak = max(self.copies_used_peak, len(self._open))
        return slot

    def get(self, key: SlotKey) -> Slot | None:
        """The open slot of an extent."""
        copy = self._open.get(key)
        return None if copy is None else copy.slot

    def __getitem__(self, key: SlotKey) -> Slot:
        slot = self._open[key].slot
        assert slot is not None
        return slot

    def hand_out(self, key: SlotKey, sum_bytes: int) -> None:
        """The sum has taken the place of the contributions; every child is behind from now on."""
        copy = self._open[key]
        self[key].contributions = []
        copy.is_summed, copy.behind = True, self._ranks

    def arrived(self, key: SlotKey) -> None:
        """The parent has the sum; the copy stays until every child has moved on."""
        copy = self._open.get(key)
        if copy is not None:
            self._close(key)
            copy.slot = None

    def give_up(self, key: SlotKey) -> list[Contribution]:
        """Hand out what an extent holds that goes on raw; its copy is free."""
        copy = self._open.get(key)
        if copy is None:
            return []
        held = self[key].contributions
        self._close(key)
        copy.reset()
        return held

    def is_summed(self, key: SlotKey) -> bool:
        """True if the sum of an extent was handed out, as far as its copy knows (F5)."""
        copy = self._copy(key)
        # The copy may be another extent's by now, and one that is free keeps its last key.
        return copy is not None and copy.key == key and copy.is_summed

    def forget(self, step: int | None = None) -> list[Payload | None]:
        """Free the copies of a decided step, or all; what they held."""
        held: list[Payload | None] = []
        for copies in self._slots:
            for copy in copies:
                # What is left of steps before goes too: nobody waits for it.
                if copy.key is not None and (step is None or copy.key[0] <= step):
                    held.extend(c.payload for c in self.give_up(copy.key))
                    copy.reset()
        return held

    def counts(self) -> dict[str, int]:
        """Counters and current sizes."""
        return {
            "slots_now": self._slots_used,
            "slots_peak": self.slots_used_peak,
            "slots_limit": self.size.slot_count,
            "slots_opened_count": self.opened_count,
            "slot_copies_now": len(self),
            "slot_copies_peak": self.copies_used_peak,
        }

    def waits_for(self, missing: Callable[[list[int]], str]) -> str:
        """The oldest slot that is not full and the ranks it misses, for people; or nothing."""
        slots = ((key, self[key]) for key in self._open)
        return oldest_unfilled(slots, missing)

    def _copy(self, key: SlotKey) -> SlotCopy | None:
        place = self.place(key)
        return None if place is None else self._slots[place[0]][place[1]]

    def _close(self, key: SlotKey) -> None:
        self._slots_used -= not self._has_other_open(key)
        del self._open[key]

    def _has_other_open(self, key: SlotKey) -> bool:
        place = self.place(key)
        assert place is not None
        return self._slots[place[0]][1 - place[1]].slot is not None
