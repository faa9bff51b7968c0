"""The switch as a state machine: N children in, one stream to the parent, one copy back to all.

Its children may be workers or other switches, its parent a switch or the optimizer node; it never
needs to know which. Pure: an event and a time in, actions out.

    a child says    the switch                                                  and answers
    Hello           keeps it; all in: says one Hello to the parent              Welcome | Refuse
    Load            hands it on                                                 Received
    Push            fills a slot; full: Sum, then one Push to the parent        Received
    Pull            serves the copy it has, or asks the parent once             Weights
    Begin, Commit   waits for all, compares, says one             Received; Verdict, Decided
    Cancel          hands it on                                                 Abort
    Leave           when all have left, says one                  Received, when the parent knows

All of this is soft state. A new attempt forgets slots and copies; a switch started anew knows no
child, answers `Rejoin`, and its own Hello makes the node open a new attempt.

A chunk that finds no slot goes on raw, every contribution singly: in float32 a chunk is summed here
or at the node, never in both (S5). A child hears `Received` when its bytes are in a slot or in the
window to the parent, so what a child may send is bounded by what the parent takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from luwu.base.outstanding import RetryPolicy
from luwu.wire.actions import PARENT, Drop, Note, Payload, Send
from luwu.wire.messages import (
    Abort,
    Begin,
    Cancel,
    Commit,
    DataMessage,
    Decided,
    Hello,
    Leave,
    Load,
    Message,
    Pull,
    Push,
    Received,
    Refuse,
    Rejoin,
    Role,
    Verb,
    Verdict,
    Weights,
    Welcome,
)  # fmt: skip
from luwu.wire.speaker import Speaker
from luwu.wire.uplink import Cargo, Uplink
from switch_emu.switch.copies import WeightsCopies
from switch_emu.switch.folds import DisagreementError, Fold
from switch_emu.switch.members import Member, Members, RefusedError, ranks_text
from switch_emu.switch.slots import Contribution, OverlapError, SlotKey, SlotPool, rank_order


@dataclass(frozen=True, slots=True)
class Sum:
    """Add the payloads in this order, in float32; answer with `SwitchCore.summed`.

    The payloads may be dropped by any later action: add before the next one is looked at.
    """

    key: SlotKey
    attempt: int
    payloads: tuple[Payload, ...]
    dtypes: tuple[str, ...]


Action = Send | Drop | Note | Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchLimits:
    """What a switch may hold."""

    slot_bytes_max: int = 256 * 1024 * 1024
    copies_bytes_max: int = 256 * 1024 * 1024
    """Weights kept for children that have not asked yet."""
    push_window_bytes: int = 16 * 1024 * 1024
    """Credit of each child."""


class SwitchCore(Speaker):
    """See the module. `children` are bitmaps of the ranks each child speaks for."""

    def __init__(
        self, *, job: int, incarnation: int, children: Sequence[int], rank: int = 0,
        limits: SwitchLimits | None = None, retry: RetryPolicy | None = None,
    ) -> None:  # fmt: skip
        super().__init__(job=job, role=Role.SWITCH, rank=rank, incarnation=incarnation)
        self._limits = limits or SwitchLimits()
        self._now_ns = 0
        self._uplink = Uplink(self._actions, retry or RetryPolicy())
        self._members = Members(job=job, children=children)
        self._joined = False
        self._loaded = False
        self._gone = False
        self._pool = SlotPool(
            ranks=self._members.ranks,
            child_count=len(children),
            bytes_max=self._limits.slot_bytes_max,
        )
        self._raw_seen: dict[SlotKey, int] = {}
        self._raw_receipted: dict[SlotKey, int] = {}
        self._summed: set[SlotKey] = set()
        self._loads: set[int] = set()
        self.copies = WeightsCopies(
            child_count=len(children), bytes_max=self._limits.copies_bytes_max
        )
        self._begins: dict[int, Fold] = {}
        self._begun = -1
        """The last step whose `Begin` the parent has; only then is a child told, since a switch
        that is started again would not know it."""
        self._commits: dict[int, Fold] = {}
        self._verdict: Verdict | None = None
        self._skip: Verdict | None = None
        """The last verdict that skipped a step, and the attempt it ended."""
        self._skipped_attempt = -1
        self._decided: Decided | None = None
        self.raw_count = 0
        """Contributions that found no slot and went on raw."""

    # ---------------------------------------------------------------------- events

    def received(
        self, now_ns: int, peer: str, message: Message, payload: Any = None, payload_bytes: int = 0
    ) -> list[Action]:
        """A message came. Data payloads are opaque, those of control messages are bytes."""
        self._now_ns = now_ns
        if peer == PARENT:
            self._from_parent(message, payload, payload_bytes)
        else:
            self._from_child(peer, message, payload, payload_bytes)
        return self._take()

    def summed(self, now_ns: int, done: Sum, payload: Payload, payload_bytes: int) -> list[Action]:
        """The sum that `done` asked for."""
        self._now_ns = now_ns
        slot = self._pool.get(done.key)
        if slot is None or not slot.full or done.attempt != self._attempt:
            self._drop(payload)  # the attempt was aborted meanwhile
        else:
            for contribution in slot.contributions:
                self._drop(contribution.payload)
            self._push_sum(done.key, payload, payload_bytes)
        return self._take()

    def reconnected(self, now_ns: int) -> list[Action]:
        """The connection to the parent, or to its successor, is back."""
        self._now_ns = now_ns
        if self._members.complete and not self._gone:
            self._say_hello()
        return self._take()

    def tick(self, now_ns: int) -> list[Action]:
        """Repeat what is due."""
        self._now_ns = now_ns
        self._uplink.tick(now_ns)
        return self._take()

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do; None while nothing waits."""
        return self._uplink.next_tick_ns()

    @property
    def finished(self) -> bool:
        """Every child has left, and the parent knows."""
        return self._gone

    @property
    def is_joined(self) -> bool:
        """The parent has welcomed us."""
        return self._joined

    def waits_for(self) -> str:
        """What must happen next, for people."""
        if not self._members.complete:
            return f"Hello of ranks {self._members.missing()}"
        if not self._joined:
            return "Welcome of the parent"
        for key in self._pool:
            slot = self._pool.get(key)
            if slot is not None and not slot.full:
                there = (c.contributors for c in slot.contributions)
                return f"step {key[0]}: chunk {key[2]} of ranks {self._members.missing(there)}"
        for step, fold in self._commits.items():
            missing = self._members.missing(fold.statements)
            if missing:
                return f"step {step}: commit of ranks {missing}"
        return f"step {self._step}: {len(self._uplink)} answers of the parent"

    # ---------------------------------------------------------------------- from children

    def _from_child(self, peer: str, m: Message, payload: Any, payload_bytes: int) -> None:
        member = self._members.of(peer, m.incarnation)
        if isinstance(m, Hello):
            self._hello(peer, m, payload)
        elif member is None:
            self._refuse(m, payload)
            self._tell(peer, self._ours(Rejoin))
        elif not self._is_current(peer, m):
            self._refuse(m, payload)
        elif isinstance(m, Push):
            self._push(peer, member, m, payload, payload_bytes)
        elif isinstance(m, Pull):
            self._pull(peer, m)
        elif isinstance(m, Load):
            self._load(peer, m, payload, payload_bytes)
        elif isinstance(m, Begin):
            self._begin(peer, member, m, payload)
        elif isinstance(m, Commit):
            self._commit(peer, member, m, payload)
        elif isinstance(m, Cancel):
            self._cancel(f"ranks {ranks_text([member.ranks])}: {m.text}")
        elif isinstance(m, Leave):
            member.left = True
            if self._gone:
                self._tell(peer, self._receipt(m, Verb.LEAVE))
            elif self._members.all_left and not self._uplink.asks("leave"):
                self._leave()
        else:
            self._refuse(m, payload)
            self._note("switch.unexpected", peer=peer, message=type(m).__name__)

    def _is_current(self, peer: str, m: Message) -> bool:
        """Whether a member's message may change anything; tells those that are behind."""
        if not self._joined or m.attempt > self._attempt or m.generation > self._generation:
            return False  # it will ask again, and by then we know
        if m.attempt == self._attempt and m.generation == self._generation:
            return True
        if m.attempt == self._skipped_attempt and self._skip is not None:
            self._tell(peer, self._skip)  # nothing of it is lost but weights that streamed ahead
        elif not (isinstance(m, Commit) and self._answer_commit(peer, m.step)):
            text = f"attempt {m.attempt} is over, {self._attempt} counts"
            self._tell(peer, self._ours(Abort, loaded=self._loaded, text=text))
        return False

    def _hello(self, peer: str, m: Hello, description: bytes) -> None:
        try:
            replaced = self._members.join(peer, m, description)
        except RefusedError as exc:
            self._note("switch.refused", level="WARNING", peer=peer, text=str(exc))
            self._tell(peer, self._ours(Refuse, text=str(exc)))
            return
        if self._joined:
            self._tell(peer, self._welcome())
            if replaced:  # what its former start pushed cannot be told from what it will push
                self._cancel(f"ranks {ranks_text([m.contributors])} were started again")
        elif self._members.complete and not self._uplink.asks("hello"):
            self._say_hello()

    def _push(self, peer: str, member: Member, m: Push, payload: Any, payload_bytes: int) -> None:
        key = (m.step, m.part, m.chunk)
        if not m.contributors or m.contributors & ~member.ranks:
            self._drop(payload)  # a member speaks for its own ranks only, whatever its header says
            self._note(
                "switch.misfit", level="WARNING", peer=peer, ranks=ranks_text([m.contributors])
            )
            return
        if m.step > self._step + 1:
            self._drop(payload)
            return
        receipt = self._receipt(m, Verb.PUSH, m.contributors)
        if m.step < self._step or key in self._summed:
            self._drop(payload)
            self._tell(peer, receipt)
            return
        said = Contribution(m.contributors, m.weight, m.last, m.dtype, payload, payload_bytes)
        slot = self._pool.get(key)
        if slot is None and key not in self._raw_seen and not m.raw:
            slot = self._pool.open(key, payload_bytes)
        if slot is None or m.raw or not self._pool.grow(slot, payload_bytes):
            self._hand_on_raw(peer, key, said, receipt)
            return
        try:
            is_new = self._pool.contribute(slot, said)
        except OverlapError as exc:
            self._drop(payload)
            self._cancel(str(exc))
            return
        self._tell(peer, receipt)
        if not is_new:
            self._drop(payload)
        elif slot.full:
            self._sum(key)

    def _sum(self, key: SlotKey) -> None:
        slot = self._pool.get(key)
        assert slot is not None
        present = [c for c in rank_order(slot.contributions) if c.payload is not None]
        if not present:
            self._push_sum(key, None, 0)
        elif len(present) == 1 and present[0].dtype == "float32":
            self._push_sum(key, present[0].payload, present[0].payload_bytes)
        else:
            payloads = tuple(c.payload for c in present)
            dtypes = tuple(c.dtype for c in present)
            self._actions.append(Sum(key, self._attempt, payloads, dtypes))

    def _push_sum(self, key: SlotKey, payload: Payload | None, payload_bytes: int) -> None:
        slot = self._pool.get(key)
        assert slot is not None
        said = Contribution(
            self._members.ranks, slot.weight, slot.contributions[0].last, "float32",
            payload, payload_bytes,
        )  # fmt: skip
        self._summed.add(key)
        self._pool.hand_out(key, payload_bytes)  # freed when the parent has it
        self._push_up(key, said, raw=False)

    def _hand_on_raw(self, peer: str, key: SlotKey, said: Contribution, receipt: Received) -> None:
        if self._pool.get(key) is not None:  # S5: a child switch had no slot for this chunk
            for held in self._pool.free(key).contributions:
                self._mark(self._raw_seen, key, held.contributors)
                self._mark(self._raw_receipted, key, held.contributors)
                self._push_up(key, held, raw=True)
        if self._raw_seen.get(key, 0) & said.contributors:
            self._drop(said.payload)
            if self._raw_receipted.get(key, 0) & said.contributors:
                self._tell(peer, receipt)
            return
        self._mark(self._raw_seen, key, said.contributors)
        self.raw_count += 1

        def on_way() -> None:
            self._mark(self._raw_receipted, key, said.contributors)
            self._tell(peer, receipt)

        self._push_up(key, said, raw=True, on_way=on_way)

    @staticmethod
    def _mark(seen: dict[SlotKey, int], key: SlotKey, contributors: int) -> None:
        seen[key] = seen.get(key, 0) | contributors

    def _push_up(self, key: SlotKey, said: Contribution, *, raw: bool, on_way: Any = None) -> None:
        step, part, chunk = key
        push = self._ours(
            Push, step=step, part=part, chunk=chunk, contributors=said.contributors,
            weight=said.weight, last=said.last, raw=raw, dtype=said.dtype,
        )  # fmt: skip
        cargo = Cargo(push, said.payload, said.payload_bytes, on_way)
        self._uplink.load(self._now_ns, ("push", *key, said.contributors), cargo)

    def _pull(self, peer: str, m: Pull) -> None:
        key = (m.step, m.part, m.chunk)
        if not self._step <= m.step <= self._step + 1:
            return
        copy = self.copies.asked(key, peer)
        if copy is not None and copy.weights is not None:
            self._actions.append(Send((peer,), copy.weights, copy.payload))
            self._drop_all(self.copies.trim(key))
        elif not self._uplink.asks(("pull", *key)):
            pull = self._ours(Pull, step=m.step, part=m.part, chunk=m.chunk)
            self._uplink.ask(self._now_ns, ("pull", *key), pull)

    def _load(self, peer: str, m: Load, payload: Payload, payload_bytes: int) -> None:
        if self._loaded or m.chunk in self._loads:
            self._drop(payload)
            if self._loaded or not self._uplink.holds(("load", m.chunk)):
                self._tell(peer, self._receipt(m, Verb.LOAD))
            return
        self._loads.add(m.chunk)
        load = self._ours(Load, step=0, part=0, chunk=m.chunk)
        self._uplink.load(self._now_ns, ("load", m.chunk), Cargo(load, payload, payload_bytes))

    def _begin(self, peer: str, member: Member, m: Begin, hyper: bytes) -> None:
        if m.step <= max(self._begun, self._step - 1):
            self._tell(peer, self._receipt(m, Verb.BEGIN))
        elif m.step <= self._step + 1 and self._agree(
            peer, member, self._fold(self._begins, m), m.hyper_hash, hyper
        ):
            begin = self._ours(
                Begin, step=m.step, contributors=self._members.ranks, hyper_hash=m.hyper_hash
            )
            self._uplink.ask(self._now_ns, ("begin", m.step), begin, self._begins[m.step].payload)

    def _commit(self, peer: str, member: Member, m: Commit, hyper: bytes) -> None:
        if self._answer_commit(peer, m.step):
            return
        if m.step == self._step - 1 and not self._uplink.asks("late-commit"):
            self._uplink.ask(self._now_ns, "late-commit", self._empty_commit(m.step), b"")
        if m.step != self._step:
            return
        statement = f"{m.parts} backward passes, {m.hyper_hash}"
        if self._agree(peer, member, self._fold(self._commits, m), statement, hyper):
            commit = self._ours(
                Commit, step=m.step, contributors=self._members.ranks, hyper_hash=m.hyper_hash,
                parts=m.parts,
            )  # fmt: skip
            self._uplink.ask(self._now_ns, "commit", commit, self._commits[m.step].payload)

    def _fold(self, folds: dict[int, Fold], m: Begin | Commit) -> Fold:
        what = f"hyper-parameters of step {m.step}"
        return folds.setdefault(m.step, Fold(what, self._members.children))

    def _agree(
        self, peer: str, member: Member, fold: Fold, statement: str, payload: bytes
    ) -> bool:  # fmt: skip
        """Note what a child states; True when it is the last and all state the same."""
        if fold.refusal:  # said again: the refusal was lost
            self._tell(peer, self._ours(Refuse, text=fold.refusal))
        elif member.ranks not in fold.statements:
            try:
                return fold.state(member.ranks, statement, payload)
            except DisagreementError as exc:
                self._tell_all(self._ours(Refuse, text=str(exc)))
        return False

    def _answer_commit(self, peer: str, step: int) -> bool:
        """Say again what is known of a step; False if nothing is."""
        known = [m for m in (self._verdict, self._decided) if m is not None and m.step == step]
        for message in known:
            self._tell(peer, message)
        return bool(known)

    # ---------------------------------------------------------------------- from the parent

    def _from_parent(self, m: Message, payload: Any, payload_bytes: int) -> None:
        if isinstance(m, Rejoin):
            if self._members.complete and not self._uplink.asks("hello"):
                self._joined = False
                self._say_hello()
        elif isinstance(m, Refuse):
            self._tell_all(self._ours(Refuse, text=m.text))
        elif isinstance(m, Welcome):
            self._welcomed(m)
        elif not self._joined or m.generation != self._generation or m.attempt < self._attempt:
            self._refuse(m, payload)
        elif isinstance(m, Abort):
            self._loaded = m.loaded
            if m.attempt > self._attempt:
                self._adopt(m.attempt, m.step)
                self._tell_all(self._ours(Abort, loaded=self._loaded, text=m.text))
        elif isinstance(m, Verdict):
            self._judged(m)
        elif isinstance(m, Decided):
            self._step_decided(m)
        elif isinstance(m, Weights):
            self._weights(m, payload, payload_bytes)
        elif isinstance(m, Received):
            self._parent_received(m)
        else:
            self._refuse(m, payload)

    def _welcomed(self, m: Welcome) -> None:
        if not self._uplink.answered("hello"):
            return
        is_same = m.attempt == self._attempt and m.generation == self._generation
        self._joined, self._loaded = True, m.loaded
        self._epoch, self._generation = m.epoch, m.generation
        self._uplink.window_bytes = m.push_window_bytes
        if is_same:  # only the connection was lost: nothing else is
            self._uplink.hurry(self._now_ns)
            return
        self._adopt(m.attempt, m.step)
        self._tell_all(self._welcome())

    def _adopt(self, attempt: int, step: int) -> None:
        """A new attempt: forget all that was computed or fetched under the older one."""
        self._attempt, self._step = attempt, step
        for key in self._pool:
            for contribution in self._pool.free(key).contributions:
                self._drop(contribution.payload)
        self._uplink.forget()
        self._drop_all(self.copies.forget())
        self._summed.clear()
        self._loads.clear()
        for held in (self._raw_seen, self._raw_receipted, self._begins, self._commits):
            held.clear()
        self._begun = -1
        self._verdict = None
        if self._members.all_left and not self._gone:
            self._leave()

    def _judged(self, m: Verdict | Decided) -> None:
        if m.step != self._step or (self._verdict is not None and self._verdict.step == m.step):
            return
        if m.attempt > self._attempt and not m.applied:  # weights that streamed ahead are void
            fold = self._commits[m.step]
            self._skipped_attempt = self._attempt
            self._adopt(m.attempt, m.step)
            self._uplink.ask(self._now_ns, "commit", self._empty_commit(m.step), fold.payload)
        self._verdict = self._ours(Verdict, step=m.step, applied=m.applied, grad_norm=m.grad_norm)
        if not m.applied:
            self._skip = self._verdict
        self._tell_all(self._verdict)

    def _step_decided(self, m: Decided) -> None:
        if m.step == self._step - 1 and self._uplink.answered("late-commit"):
            self._decided = self._ours(
                Decided, step=m.step, applied=m.applied, grad_norm=m.grad_norm
            )
            self._tell_all(self._decided)
        if m.step != self._step:
            return
        self._judged(m)
        self._step = m.step + 1
        self._uplink.answered("commit")
        for folds in (self._begins, self._commits):
            folds.pop(m.step, None)
        self._summed = {key for key in self._summed if key[0] != m.step}
        for seen in (self._raw_seen, self._raw_receipted):
            for key in [key for key in seen if key[0] == m.step]:
                del seen[key]
        self._drop_all(self.copies.forget(step_max=m.step))
        self._decided = self._ours(Decided, step=m.step, applied=m.applied, grad_norm=m.grad_norm)
        self._tell_all(self._decided)

    def _weights(self, m: Weights, payload: Payload, payload_bytes: int) -> None:
        key = (m.step, m.part, m.chunk)
        if not self._uplink.answered(("pull", *key)) or not self.copies.awaits(key):
            self._drop(payload)
            return
        self._loaded = True
        weights = self._ours(Weights, step=m.step, part=m.part, chunk=m.chunk, dtype=m.dtype)
        askers = self.copies.came(key, weights, payload, payload_bytes)
        self._actions.append(Send(askers, weights, payload))
        self._drop_all(self.copies.trim(key))

    def _parent_received(self, m: Received) -> None:
        if m.verb is Verb.PUSH:
            key = (m.step, m.part, m.chunk)
            if self._uplink.arrived(self._now_ns, ("push", *key, m.contributors)) and (
                self._pool.get(key) is not None
            ):
                self._pool.free(key)
        elif m.verb is Verb.LOAD:
            if self._uplink.arrived(self._now_ns, ("load", m.chunk)):
                self._tell_all(self._receipt(m, Verb.LOAD))
        elif m.verb is Verb.BEGIN:
            if self._uplink.answered(("begin", m.step)):
                self._begun = m.step
                self._tell_all(self._receipt(m, Verb.BEGIN))
        elif m.verb is Verb.LEAVE and self._uplink.answered("leave"):
            self._gone = True
            self._tell_all(self._receipt(m, Verb.LEAVE))

    # ---------------------------------------------------------------------- what we say

    def _say_hello(self) -> None:
        first = self._members.first
        assert first is not None
        hello = self._ours(
            Hello, protocol=first.protocol, world_size=first.world_size,
            contributors=self._members.ranks, description_hash=first.description_hash,
        )  # fmt: skip
        self._uplink.ask(self._now_ns, "hello", hello, self._members.description)

    def _empty_commit(self, step: int) -> Commit:
        """Asks for the decision of a step whose commit the parent has already."""
        return self._ours(
            Commit, step=step, contributors=self._members.ranks, hyper_hash="", parts=0
        )

    def _welcome(self) -> Welcome:
        return self._ours(
            Welcome, loaded=self._loaded, push_window_bytes=self._limits.push_window_bytes
        )

    def _leave(self) -> None:
        leave = self._ours(Leave, contributors=self._members.ranks)
        self._uplink.ask(self._now_ns, "leave", leave)

    def _cancel(self, text: str) -> None:
        if not self._uplink.asks("cancel"):
            self._uplink.ask(self._now_ns, "cancel", self._ours(Cancel, text=text[:900]))

    def _receipt(self, m: Message, verb: Verb, contributors: int = 0) -> Received:
        chunk, part = (m.chunk, m.part) if isinstance(m, DataMessage) else (0, 0)
        return self._ours(
            Received, step=m.step, chunk=chunk, part=part, verb=verb, contributors=contributors
        )

    def _tell_all(self, message: Message) -> None:
        self._announce(self._members.peers, message)

    def _drop_all(self, payloads: list[Payload]) -> None:
        self._actions.extend(Drop(payload) for payload in payloads)
