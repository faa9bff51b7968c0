"""The switch as a state machine: N children in, one stream to the parent, one copy back to all.

Its children may be workers or other switches, its parent a switch or the optimizer node; it never
needs to know which. Pure: an event and a time in, actions out.

    a child says    the switch                                                  and answers
    Hello           keeps it; all in: says one Hello to the parent              Welcome | Refuse
    Load            hands it on                                                 Received
    Push            fills a slot; full: Sum, then one Push to the parent        Received
    Pull            serves the copy it has, or asks the parent once             Weights
    Begin, Commit   waits for all, compares, says one             Received; Verdict, Decided
    Propose         waits for all, folds, says one                Agreed, when the parent says so
    Confirm         asks the parent once                          Confirmed
    Cancel, Keep    hands it on                                                 Abort; Received
    Leave           when all have left, says one                  Received, when the parent knows
    Present         says whom all of them hear                    Received
    Open, Read      hands them on, of readers that are no children      Opened, Content

All of this is soft state. A new attempt forgets slots and copies; a switch started anew knows no
child, answers `Rejoin`, and its own Hello makes the node open a new attempt.

A chunk that finds no slot goes on raw, every contribution singly: in float32 a chunk is summed here
or at the node, never in both (S5). When a child hears `Received`, its pool says (`pool.py`):

    functional    its bytes are in a slot, or in the window to the parent
    protocol      its chunk is summed and in the window to the parent: the result frees the next
                  send. What is said again of a slot that is not full is answered at once, so two
                  children that push in different orders wait for a timer and not for ever.

So what a child may send is bounded by what the parent takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from luwu.aggregate.interface import ENCODED
from luwu.base.outstanding import RetryPolicy
from luwu.protocol.actions import PARENT, Payload
from luwu.protocol.contribution import (
    Contribution,
    OverlapError,
    common_absent,
    contribution_of,
    rank_order,
)
from luwu.protocol.members import Member, ranks_text
from luwu.protocol.push_form import PushForm
from luwu.wire import messages as wire
from luwu.wire.description import parse_description
from luwu.wire.kinds import Verb
from switch_emu.switch.core.actions import Action, Sum, SwitchLimits
from switch_emu.switch.core.handing_on import SwitchHandingOn
from switch_emu.switch.core.pool import make_pool
from switch_emu.switch.core.reader_routes import ReaderRoutes
from switch_emu.switch.core.resources import pool_resources
from switch_emu.switch.core.slots import Slot, SlotKey


class SwitchCore(SwitchHandingOn):
    """See the module. `children` are bitmaps of the ranks each child speaks for.

    Here stand the dispatch and the slots. What is handed on as it is: `handing_on.py`; Begin,
    Commit and how a step comes out: `statements.py`; what an aggregator asks: `agreeing.py`;
    joining and attempts: `membership.py`.
    """

    def __init__(
        self, *, job: int, incarnation: int, children: Sequence[int], rank: int = 0,
        limits: SwitchLimits | None = None, retry: RetryPolicy | None = None,
    ) -> None:  # fmt: skip
        limits = limits or SwitchLimits()
        super().__init__(job, incarnation, rank, children, limits, retry or RetryPolicy())
        self.pool = make_pool(limits, ranks=self._members.ranks, child_count=len(children))
        self._routes = ReaderRoutes(self._actions, self._ours)
        self.duplicates: Counter[str] = Counter()
        """Contributions that had been taken in before, and came again, by child."""
        self._form: PushForm | None = None
        """What pushes must look like; known when the parent has read the description."""

    # ---------------------------------------------------------------------- events

    def received(
        self, now_ns: int, peer: str, message: wire.Message, payload: Any = None,
        payload_bytes: int = 0,
    ) -> list[Action]:  # fmt: skip
        """A message came. Data payloads are opaque, those of control messages are bytes."""
        self._now_ns = now_ns
        if peer == PARENT:
            self._from_parent(message, payload, payload_bytes)
        else:
            self._from_child(peer, message, payload, payload_bytes)
        return self._take()

    def _from_child(self, peer: str, m: wire.Message, payload: Any, payload_bytes: int) -> None:
        member = self._members.of(peer, m.incarnation)
        if isinstance(m, wire.ReaderRequest):
            self._routes.up(peer, m)
        elif isinstance(m, wire.Hello):
            self._hello(peer, m, payload)
        elif member is None:
            self._refuse(m, payload)
            self._tell(peer, self._ours(wire.Rejoin))
        elif isinstance(m, wire.Present):
            self._present(peer, member, m)
        elif not self._is_current(peer, member, m):
            self._refuse(m, payload)
        elif isinstance(m, wire.Pull | wire.Propose) and m.chunk >= self._chunks_count:
            text = f"it sent {type(m).__name__} of chunk {m.chunk}; there are {self._chunks_count}"
            self._expel(peer, member, text)
        elif isinstance(m, wire.Push):
            self._push(peer, member, m, payload, payload_bytes)
        elif isinstance(m, wire.Pull):
            self._pull(peer, member, m)
        elif isinstance(m, wire.Load):
            self._load(peer, m, payload, payload_bytes)
        elif isinstance(m, wire.Keep):
            self._keep(peer, member, m, payload, payload_bytes)
        elif isinstance(m, wire.Begin):
            self._begin(peer, member, m, payload)
        elif isinstance(m, wire.Commit):
            self._commit(peer, member, m, payload)
        elif isinstance(m, wire.Propose):
            self._propose(peer, member, m, payload)
        elif isinstance(m, wire.Confirm):
            self._confirm(peer, m)
        elif isinstance(m, wire.Cancel):
            self._cancel(f"ranks {ranks_text([member.ranks])}: {m.text}", lost=m.lost)
        elif isinstance(m, wire.Leave):
            self._leave(peer, member, m)
        else:
            self._refuse(m, payload)
            self._note("switch.unexpected", peer=peer, message=type(m).__name__)

    def _from_parent(self, m: wire.Message, payload: Any, payload_bytes: int) -> None:
        if isinstance(m, wire.ReaderAnswer):
            self._routes.down(m, payload)
        elif isinstance(m, wire.Rejoin):
            self._asked_to_rejoin()
        elif isinstance(m, wire.Refuse):
            self._refused(m)
        elif isinstance(m, wire.Welcome):
            self._welcomed(m)
        elif isinstance(m, wire.Received) and m.verb is Verb.HELLO:
            self._tell_joined(m.contributors)
        elif not self._joined or m.generation < self._generation or m.attempt < self._attempt:
            self._refuse(m, payload)
        elif isinstance(m, wire.Abort):
            self._aborted(m)
        elif m.generation > self._generation:
            self._refuse(m, payload)  # the Welcome or Abort that tells of it is still to come
        elif isinstance(m, wire.Verdict):
            self._judged(m)
        elif isinstance(m, wire.Decided):
            self._decided(m)
        elif isinstance(m, wire.Weights):
            self._weights(m, payload, payload_bytes)
        elif isinstance(m, wire.Received):
            self._received(m)
        elif isinstance(m, wire.Agreed):
            self._heard_agreed(m, payload)
        elif isinstance(m, wire.Confirmed):
            self._heard_confirmed(m)
        else:
            self._refuse(m, payload)

    # ---------------------------------------------------------------------- N gradients in, one out

    @property
    def _chunks_count(self) -> int:
        return 0 if self._form is None else self._form.chunks_count

    def _push(
        self, peer: str, member: Member, m: wire.Push, payload: Any, payload_bytes: int
    ) -> None:
        assert self._form is not None, "who is not joined is not current"
        fault = self._fault_of_ranks(member, m)
        fault = fault or self._form.fault(m, payload_bytes, has_payload=payload is not None)
        if fault:
            self._drop(payload)
            self._expel(peer, member, fault)
            return
        key = (m.step, m.part, m.chunk)
        said = contribution_of(m, payload, payload_bytes)
        receipt = self._receipt(m, Verb.PUSH, m.contributors)
        if m.step > self._step + 1:
            self._drop(payload)
        elif m.step < self._step or self.pool.is_summed(key):
            self._answer_repetition(peer, said, receipt)
        else:
            self.pool.passes(key, member.ranks)
            slot = None
            may_sum = not m.raw and not self._limits.only_forwards
            if may_sum and key not in self._raw:
                slot = self.pool.room(key, payload_bytes)
            if slot is not None:
                self._contribute(peer, key, slot, said, receipt)
                return
            for held in self.pool.give_up(key):  # S5: all of a chunk goes on raw, or nothing
                self._hand_on_held(key, held, self._told_later(key, [held]))
            self._hand_on_raw(peer, key, said, receipt)

    def _answer_repetition(self, peer: str, said: Contribution, receipt: wire.Received) -> None:
        """What is held already, or was summed: only this peer hears of it again."""
        self.duplicates[self.name_of(peer)] += 1
        self._drop(said.payload)
        self._tell(peer, receipt)

    def _contribute(
        self, peer: str, key: SlotKey, slot: Slot, said: Contribution, receipt: wire.Received
    ) -> None:
        try:
            is_new = self.pool.contribute(slot, said)
        except OverlapError as exc:
            self._drop(said.payload)
            self._cancel(str(exc))
            return
        if not is_new:
            self._answer_repetition(peer, said, receipt)
            return
        if not self.pool.tells_when_summed:
            self._tell(peer, receipt)
        if slot.full:
            self._sum(key)

    def _sum(self, key: SlotKey) -> None:
        present = [c for c in rank_order(self.pool[key].contributions) if c.payload is not None]
        if not present:
            self._push_sum(key, None, 0)
        elif len(present) == 1 and present[0].dtype in ("float32", ENCODED):
            self._push_sum(key, present[0].payload, present[0].payload_bytes)
        else:
            payloads = tuple(c.payload for c in present)
            dtypes = tuple(c.dtype for c in present)
            self._actions.append(Sum(key, self._attempt, payloads, dtypes))

    def summed(self, now_ns: int, done: Sum, payload: Payload, payload_bytes: int) -> list[Action]:
        """The sum that `done` asked for."""
        self._now_ns = now_ns
        slot = self.pool.get(done.key)
        if slot is None or not slot.full or done.attempt != self._attempt:
            self._drop(payload)  # the attempt was aborted meanwhile
        else:
            self._drop_all(c.payload for c in slot.contributions)
            self._push_sum(done.key, payload, payload_bytes)
        return self._take()

    def _push_sum(self, key: SlotKey, payload: Payload | None, payload_bytes: int) -> None:
        slot, ranks = self.pool[key], self._members.active
        last = slot.contributions[0].last
        is_encoded = any(c.dtype == ENCODED for c in slot.contributions)
        dtype = ENCODED if is_encoded else "float32"
        absent = common_absent(slot.contributions)
        said = Contribution(ranks, slot.weight, last, dtype, payload, payload_bytes, absent)
        on_way = self._told_later(key, slot.contributions)
        self.pool.hand_out(key, payload_bytes)  # freed when the parent has it
        self._push_up(key, said, raw=False, on_way=on_way)

    def _told_later(
        self, key: SlotKey, held: Sequence[Contribution]
    ) -> Callable[[], None] | None:  # fmt: skip
        """What tells these children when their bytes are on their way; None if they know."""
        if not self.pool.tells_when_summed:
            return None
        return partial(self._tell_received, key, [each.contributors for each in held])

    def _tell_received(self, key: SlotKey, in_slot: Sequence[int]) -> None:
        """The sum is on its way: all who are in it hear of it at once, and may send the next."""
        step, part, chunk = key
        for contributors in in_slot:
            peer = self._members.peer_of(contributors)
            if peer is not None:
                receipt = self._ours(
                    wire.Received, step=step, chunk=chunk, part=part, verb=Verb.PUSH,
                    contributors=contributors,
                )  # fmt: skip
                self._tell(peer, receipt)

    def _received(self, m: wire.Received) -> None:
        super()._received(m)
        key = (m.step, m.part, m.chunk)
        arrived = m.verb is Verb.PUSH and self._uplink.arrived(
            self._now_ns, ("push", *key, m.contributors)
        )
        if arrived:
            self.pool.arrived(key)

    def _welcomed(self, m: wire.Welcome) -> None:
        is_answer = self._uplink.asks("hello")  # the parent has read the description
        if is_answer and self._form is None:
            job = parse_description(self._members.description)
            self._form = PushForm(job.layout, self.aggregator)
            self.pool.learn(job)
        super()._welcomed(m)

    def _forget(self, step: int | None = None) -> None:
        super()._forget(step)
        self._drop_all(self.pool.forget(step))
        if step is None:
            self.pool.serve(self._members.active)

    def report(self) -> dict[str, Any]:
        """How the slots came out, and what they would take of a real switch (`resources.py`)."""
        slots, found = self._limits.slots, {"fidelity": "functional", **self.counts()}
        if slots is not None:
            resources = pool_resources(slots, len(self._members.children))
            found.update(fidelity="protocol", resources=resources)
        return found

    def lost(self, now_ns: int, peer: str) -> list[Action]:
        """The connection to a child, or of readers, has ended."""
        self._routes.lost(peer)
        return super().lost(now_ns, peer)

    def is_member(self, peer: str) -> bool:
        """Whether a connection is that of a child that has joined."""
        return self._members.member_at(peer) is not None

    def name_of(self, peer: str) -> str:
        """What a connection is, for people: `parent`, `ranks 0, 1`."""
        return peer if peer == PARENT else self._members.name_of(peer)

    def counts(self) -> dict[str, int]:
        """What was counted so far, and what is held now."""
        return {
            "repeated_count": self._uplink.repeated_count,
            "duplicates_count": self.duplicates.total(),
            "raw_count": self.raw_count,
            "fallback_count": self.copies.fallback_count,
            **self.pool.counts(),
            "copies_bytes_now": self.copies.bytes_used,
        }

    def waits_for(self) -> str:
        """What must happen next, for people."""
        late = self.pool.waits_for(self._members.missing) if self._joined else ""
        return late or super().waits_for()
