"""Pushes in slots: the contributions of all children to an extent meet, and go up as one sum. Pure.

A push fills a slot of the pool (`slots.py`). When the slot is full the shell is asked for the `Sum`
of its contributions, in rank order, and the sum goes to the parent in one Push; the slot is freed
when the parent has it. A contribution that finds no slot waits for one if its child is ahead of all
others (`Waiting`, where the limits say so); else the extent goes up raw, all of it, to be summed at
the node (S5; `RawUp`). When a child is sent `Received` depends on the pool:

    functional    its bytes are in a slot, or in the window to the parent
    protocol      its extent is summed and in the window to the parent: the result frees the next
                  send. A repetition for a slot that is not full is answered at once, so two
                  children that push in different orders wait for a timer and not for ever.

So what a child may send is limited by what the parent takes.

Where no slot has room, a child that is in every open slot is ahead, and loses nothing if it waits:
a slot becomes free when the others have come so far, and until then its step cannot end. So its
contribution is held unanswered, which also holds back what it would send next. A contribution that
goes up raw instead would travel alone, and the node would have to keep it until the rest has come.

    S6  A child that waits is in every open slot that is not full. So each of these misses a child
        that does not wait, and some slot becomes full whatever the orders in which children push:
        who pushes in another order than the rest, and is not in some slot, goes up raw.
    S7  Extents get slots in the order in which they began to wait; none overtakes them.

The child of a raw contribution is sent `Received` when its bytes are in the window to the parent;
until then its repetitions are dropped without an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from luwu.aggregate.interface import ENCODED
from luwu.protocol.actions import Payload
from luwu.protocol.children import Children, Member
from luwu.protocol.contribution import (
    Contribution,
    OverlapError,
    common_absent,
    contribution_of,
    rank_order,
)
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Cargo, Uplink
from luwu.wire import messages as wire
from luwu.wire.messages import Verb
from switch_emu.switch.core.actions import Sum, SwitchLimits
from switch_emu.switch.core.attempts import Attempts
from switch_emu.switch.core.fixed_slots import FixedSlotPool
from switch_emu.switch.core.slots import Slot, SlotKey, SlotPool
from switch_emu.switch.core.weights_down import WeightsDown


def push_up(
    outbox: Outbox, uplink: Uplink, key: SlotKey, contribution: Contribution, *, raw: bool,
    on_way: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Push a sum, or (raw) what one child contributed, to the parent.

    `on_way` is called when it enters the window.
    """
    step, part, extent = key
    push = outbox.stamped(
        wire.Push, step=step, part=part, index=extent, contributors=contribution.contributors,
        absent=contribution.absent, weight=contribution.weight, last=contribution.last, raw=raw,
        dtype=contribution.dtype,
    )  # fmt: skip
    cargo = Cargo(push, contribution.payload, contribution.payload_bytes, on_way)
    uplink.load(outbox.now_ns, ("push", *key, contribution.contributors), cargo)


class Held(NamedTuple):
    """A contribution that a child has sent."""

    peer: str
    contribution: Contribution
    receipt: wire.Received
    """Its answer, which is not sent yet."""


class RawUp:
    """See the module."""

    def __init__(self, outbox: Outbox, uplink: Uplink) -> None:
        self._outbox, self._uplink = outbox, uplink
        self._taken: dict[SlotKey, int] = {}
        """Ranks of every extent that is summed at the node and not here."""
        self._on_way: dict[SlotKey, int] = {}
        """Those whose bytes are, or were, in the window to the parent."""
        self.count = 0
        """Contributions that found no slot and went on raw."""

    def __contains__(self, key: SlotKey) -> bool:
        """True if an extent goes up raw."""
        return key in self._taken

    def forget(self, step: int | None = None) -> None:
        """Forget the extents of a decided step; without one, all."""
        for ranks_of in (self._taken, self._on_way):
            for key in [key for key in ranks_of if step is None or key[0] == step]:
                del ranks_of[key]

    def push(
        self, key: SlotKey, contribution: Contribution, answer: Callable[[], None] | None
    ) -> None:  # fmt: skip
        """A contribution that finds no slot, or was in one when the extent lost it.

        `answer` sends its receipt as it enters the window; None: that was sent before.
        """
        ranks = contribution.contributors
        if self._taken.get(key, 0) & ranks:
            self._outbox.drop(contribution.payload)
            if answer is not None and self._on_way.get(key, 0) & ranks:
                answer()
            return
        self.count += 1
        self._taken[key] = self._taken.get(key, 0) | ranks

        def on_way() -> None:
            self._on_way[key] = self._on_way.get(key, 0) | ranks
            if answer is not None:
                answer()

        push_up(self._outbox, self._uplink, key, contribution, raw=True, on_way=on_way)


class Waiting:
    """See the module."""

    def __init__(self) -> None:
        self._held: dict[SlotKey, list[Held]] = {}
        self.count = 0
        """Contributions that have waited."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: SlotKey) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[SlotKey]:
        """The extents, in the order in which they began to wait."""
        return iter(list(self._held))

    def nbytes(self, key: SlotKey) -> int:
        """Bytes of the largest contribution to an extent."""
        return max(each.contribution.payload_bytes for each in self._held[key])

    def ranks(self, key: SlotKey) -> int:
        """The ranks whose contributions to this extent wait."""
        found = 0
        for each in self._held.get(key, ()):
            found |= each.contribution.contributors
        return found

    def add(self, key: SlotKey, held: Held) -> None:
        """From now on this contribution waits."""
        self._held.setdefault(key, []).append(held)
        self.count += 1

    def take(self, key: SlotKey) -> list[Held]:
        """All that waits for a slot of this extent: it waits no more."""
        return self._held.pop(key, [])

    def forget(self, step: int | None = None) -> list[Payload | None]:
        """A step is decided, or (None) the attempt is over: what was held."""
        keys = [key for key in self if step is None or key[0] <= step]
        return [each.contribution.payload for key in keys for each in self.take(key)]


class Aggregation:
    """See the module."""

    def __init__(
        self, outbox: Outbox, children: Children, uplink: Uplink, attempts: Attempts,
        weights: WeightsDown, raw: RawUp, limits: SwitchLimits,
    ) -> None:  # fmt: skip
        self._outbox, self._uplink, self._attempts = outbox, uplink, attempts
        self._members = children.members
        self._weights, self._raw = weights, raw
        ranks, child_count = self._members.ranks, len(self._members.children)
        self.pool: SlotPool | FixedSlotPool
        """That of the switch's fidelity."""
        if limits.slots is None:
            self.pool = SlotPool(
                ranks=ranks, child_count=child_count, bytes_max=limits.slot_bytes_max
            )
        else:
            self.pool = FixedSlotPool(ranks=ranks, pool=limits.slots)
        self.waiting = Waiting()
        self._slots_are_awaited = limits.drop_after_ns is None
        self.duplicates: Counter[str] = Counter()
        """Contributions that came again, by child."""

    def forget(self, step: int | None = None) -> None:
        """Free the slots of a decided step; without one, in a new attempt, all."""
        self._outbox.drop_all([*self.pool.forget(step), *self.waiting.forget(step)])
        if step is None:
            self.pool.serve(self._members.active)

    # ---------------------------------------------------------------------- N gradients in, one out

    def push(self, child: Member, m: wire.Push, payload: Payload | None, nbytes: int) -> None:
        """A child contributes to an extent."""
        key = (m.step, m.part, m.index)
        receipt = self._outbox.receipt(m, Verb.PUSH, m.contributors)
        held = Held(child.peer, contribution_of(m, payload, nbytes), receipt)
        if m.step > self._outbox.step + 1:
            self._outbox.drop(payload)
        elif m.step < self._outbox.step or self.pool.is_summed(key):
            self._answer_repetition(held)
        else:
            self.pool.passes(key, child.ranks)
            self._weights.pushed(m.step, m.index)
            if m.raw or key in self._raw:
                self._go_raw(key, held)
            else:
                self._place(key, held)
                self._admit()

    def _place(self, key: SlotKey, held: Held) -> None:
        """A contribution takes its place in a slot, or waits for one, or goes up raw."""
        slot = None
        if not self.waiting or self.pool.get(key) is not None:  # S7
            slot = self.pool.room(key, held.contribution.payload_bytes)
        if slot is not None:
            self._contribute(key, slot, held)
        elif self.waiting.ranks(key) & held.contribution.contributors:
            self._outbox.drop(held.contribution.payload)  # a repetition; answered with a slot
        elif self._slots_are_awaited and self.pool.is_ahead(held.contribution.contributors):
            self.waiting.add(key, held)
        else:
            self._go_raw(key, held)

    def _go_raw(self, key: SlotKey, *held: Held) -> None:
        """All of an extent goes on raw, or nothing (S5)."""
        assert not self.pool.is_summed(key), "S5"
        for each in self.pool.give_up(key):
            self._raw.push(key, each, self._answer_later(key, [each]))
        for one in (*self.waiting.take(key), *held):
            answer = partial(self._outbox.send, one.peer, one.receipt)
            self._raw.push(key, one.contribution, answer)

    def _admit(self) -> None:
        """Give slots to what waits for them, as far as there is room."""
        for key in self.waiting:
            if key not in self.waiting:
                continue  # it went up raw meanwhile
            slot = self.pool.room(key, self.waiting.nbytes(key))
            if slot is None and len(self.pool):
                return
            if slot is None:
                self._go_raw(key)  # one extent is larger than the pool
                continue
            for each in self.waiting.take(key):
                self._contribute(key, slot, each)
            for other in self.waiting:  # S6: who waits, and is not in this slot, does not wait
                if not slot.full and self.waiting.ranks(other) & ~slot.contributors:
                    self._go_raw(other)

    def _answer_repetition(self, held: Held) -> None:
        """Answer this child again: its contribution is held or was summed."""
        self.duplicates[self._members.name_of(held.peer)] += 1
        self._outbox.drop(held.contribution.payload)
        self._outbox.send(held.peer, held.receipt)

    def _contribute(self, key: SlotKey, slot: Slot, held: Held) -> None:
        assert self.pool.get(key) is slot, "S2"
        try:
            is_new = slot.add(held.contribution)
        except OverlapError as exc:
            self._outbox.drop(held.contribution.payload)
            self._attempts.cancel(str(exc))
            return
        if not is_new:
            self._answer_repetition(held)
            return
        if not self.pool.answers_when_summed:
            self._outbox.send(held.peer, held.receipt)
        if slot.full:
            self._sum(key)

    def _sum(self, key: SlotKey) -> None:
        present = [c for c in rank_order(self.pool[key].contributions) if c.payload is not None]
        if not present:
            self._push_sum(key, None, 0, "float32")
        elif len(present) == 1:  # it is the sum, in fewer bytes than float32 would take
            (only,) = present
            self._push_sum(key, only.payload, only.payload_bytes, only.dtype)
        else:
            payloads = tuple(c.payload for c in present)
            dtypes = tuple(c.dtype for c in present)
            self._outbox.actions.append(Sum(key, self._outbox.attempt, payloads, dtypes))

    def summed(self, done: Sum, payload: Payload, payload_bytes: int) -> None:
        """The sum that `done` asked for is there."""
        slot = self.pool.get(done.key)
        if slot is None or not slot.full or done.attempt != self._outbox.attempt:
            self._outbox.drop(payload)  # the attempt was aborted meanwhile
        else:
            self._outbox.drop_all(c.payload for c in slot.contributions)
            dtype = ENCODED if ENCODED in done.dtypes else "float32"
            self._push_sum(done.key, payload, payload_bytes, dtype)
            self._admit()

    def _push_sum(
        self, key: SlotKey, payload: Payload | None, payload_bytes: int, dtype: str
    ) -> None:  # fmt: skip
        slot, ranks = self.pool[key], self._members.active
        assert slot.contributors == ranks, "S1: each rank that counts, once"
        assert key not in self._raw, "S5"
        last = slot.contributions[0].last
        absent = common_absent(slot.contributions)
        total = Contribution(ranks, slot.weight, last, dtype, payload, payload_bytes, absent)
        on_way = self._answer_later(key, slot.contributions)
        self.pool.hand_out(key, payload_bytes)  # freed when the parent has it
        push_up(self._outbox, self._uplink, key, total, raw=False, on_way=on_way)

    def received(self, m: wire.Received) -> None:
        """The parent has a push: of a sum, its slot is free."""
        key = (m.step, m.part, m.index)
        if self._uplink.arrived(self._outbox.now_ns, ("push", *key, m.contributors)):
            self.pool.arrived(key)
            self._admit()

    # ---------------------------------------------------------------------- receipts, when summed

    def _answer_later(
        self, key: SlotKey, contributions: Sequence[Contribution]
    ) -> Callable[[], None] | None:
        """A function that sends Received to these children; None if they have it."""
        if not self.pool.answers_when_summed:
            return None
        return partial(self._send_receipts, key, [each.contributors for each in contributions])

    def _send_receipts(self, key: SlotKey, in_slot: Sequence[int]) -> None:
        """The sum is on its way: all who are in it are answered at once, and may send the next."""
        step, part, extent = key
        for contributors in in_slot:
            peer = self._members.peer_of(contributors)
            if peer is not None:
                receipt = self._outbox.receipt_of(Verb.PUSH, step, extent, part, contributors)
                self._outbox.send(peer, receipt)
