"""Who decides which attempt counts and how a step comes out: a single node, or several together.

`Alone` is a single node: it decides alone. An abort between the verdict of a step and its
decision waits for the decision; but if what belongs to the step is lost, only for the store to have
time.

`Joint` is one of several nodes, which their switch leads: it reports its position, and follows.

    the switch sends   this node
    Hello              records that it hears no older switch, and answers Standing
    Adopt              makes its store if it has none, or empties it to be filled; decides what is
                       decided; records epoch and attempt; forgets the attempt before; answers
                       Welcome
    Verdict            the open step is applied, or skipped
    Resolved           all nodes are prepared: it decides, and says Decided
    Refuse             ends: the job goes on without it, or its state is not that of the others

What it states of the open step (Measured, Prepared) is repeated until the answer comes. An attempt
is taken over once the store has time, and a version that is decided elsewhere is decided here. The
other side of these messages, and the rules E1 to E8, are in `switch/core/lead.py`. Pure.

What a part of the node returns where the core must act on it (`Result`):

    None             nothing more to do
    True             something new is known: see what has become possible
    AbortRequest     the attempt is to be given up
    Judgement        the open step comes out like this
    wire.Adopt       take over the attempt that the switch announced
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from luwu.base.retry import RetryPolicy
from luwu.protocol.actions import Send
from luwu.protocol.children import Children, RefusedError, SupersededError
from luwu.protocol.epoch import Epoch
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Outstanding
from luwu.wire import messages as wire
from luwu.wire.norms import Squares, encode_all, norms_of
from switch_emu.node.core.actions import (
    BeginFilling,
    GiveUp,
    NodeLimits,
    OpenStore,
    RecordAttempt,
    StoreFacts,
)
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.state import State
from switch_emu.node.core.step import Steps
from switch_emu.node.core.whole_pages import Filling


class AbortRequest(NamedTuple):
    """The attempt is to be given up as soon as that is allowed."""

    text: str
    is_lost: bool = False
    """True if contributions to the open step are lost: it cannot be decided first."""


class Judgement(NamedTuple):
    """The open step is applied, or it is skipped."""

    applied: bool
    norms: tuple[float, ...]
    attempt: int
    """The attempt that a skipped step opens."""


Result = AbortRequest | Judgement | wire.Adopt | bool | None


class Alone:
    """A single node; see the module."""

    is_enlisted = True
    """It knows which attempt counts."""
    repeated_count = 0
    """Messages that were repeated because no answer came in time."""

    def __init__(self, outbox: Outbox, shard: Shard, state: State, steps: Steps) -> None:
        self._outbox, self._shard = outbox, shard
        self._state, self._steps = state, steps
        self._abort_text: str | None = None
        """An abort that waits for the open step, or the first weights, to be decided, ..."""
        self._is_lost = False
        """... or, as what came in for the step is lost, only for the store to have time."""

    # ---------------------------------------------------------------------- the open step

    def measured(self, step: int, squares: Sequence[Squares | None]) -> Judgement | None:
        """All sums are complete: the step is applied if its norm is finite."""
        open_step, norm_type = self._steps.open, self._shard.norm_type
        assert open_step is not None
        norms = norms_of(squares, norm_type, open_step.stated.all_clips(norm_type))
        applied = math.isfinite(norms[0]) and not open_step.skip
        return Judgement(applied, norms, self._outbox.attempt + 1)

    def prepared(self, version: int, digests: bytes) -> AbortRequest | None:
        """A version is durable: decide it; or the abort that had to wait for that."""
        if self._is_lost:
            return self.waiting()
        self._state.decide()
        return None

    # ---------------------------------------------------------------------- attempts

    def request_abort(self, request: AbortRequest) -> bool:
        """True if the attempt may be given up now; else the abort waits."""
        step = self._steps.open
        is_judged = step is not None and step.verdict is not None
        is_decided = self._state.is_sealing or (is_judged and not request.is_lost)
        # Before the first weights are decided, what was pushed waits for them, and so does this.
        if is_decided or self._state.version is None:
            self._abort_text, self._is_lost = request.text, self._is_lost or request.is_lost
            return False
        return True

    def waiting(self) -> AbortRequest | None:
        """The abort that waits: the store has time for it."""
        return None if self._abort_text is None else AbortRequest(self._abort_text)

    def forget(self) -> None:
        """A new attempt: no abort waits."""
        self._abort_text, self._is_lost = None, False


OLDER_STATE_CODE = "E508"
LEFT_OUT_CODE = "E510"
_LATER_SWITCH = (
    "a later start of the switch leads this optimizer node; stop this process (the clocks of the "
    "hosts decide which start is later: synchronize them with NTP if this process started later)"
)


class Joint:
    """One of several nodes; see the module."""

    def __init__(
        self, outbox: Outbox, children: Children, shard: Shard, state: State, steps: Steps,
        filling: Filling, limits: NodeLimits, retry: RetryPolicy,
    ) -> None:  # fmt: skip
        self._outbox, self._children, self._limits = outbox, children, limits
        self._shard, self._state, self._steps = shard, state, steps
        self._filling = filling
        self._asked: Outstanding[tuple[wire.Message, bytes | None]] = Outstanding(retry)
        self._recorded = Epoch()
        """What is on disk."""
        self._digests = b""
        """Of the stripes of the version that was last prepared."""
        self.is_enlisted = False
        """It has taken an attempt over since it was started: it knows which one counts."""
        self._ahead: wire.Adopt | None = None
        """An attempt that is taken over as soon as the store is ready for it."""
        self._beginning = 0
        """Number of a filling for which the store is being emptied."""
        self.repeated_count = 0
        """Messages that were repeated because no answer came in time."""

    def opened(self, facts: StoreFacts) -> wire.Adopt | None:
        """The store is open; the attempt that waited for it, if it can be taken over."""
        self._recorded, self._digests = facts.recorded, facts.prepared_digests
        if self._beginning:
            self._filling.begin(self._beginning)
            self._beginning, self._children.outcomes.decided = 0, None  # it does not know how
        return None if self._ahead is None else self._follow(self._ahead)

    # ---------------------------------------------------------------------- what the switch sends

    def hello(self, peer: str, hello: wire.Hello, description: bytes) -> None:
        """The switch, or another start of it, asks for this node's position."""
        shard = self._shard
        try:
            if hello.incarnation < self._recorded.promised:
                raise SupersededError(_LATER_SWITCH)
            if shard.description is not None:
                shard.check_same_job(description)
            self._children.members.join(peer, hello, description)
            self._asked.hurry(self._outbox.now_ns)  # what was said on the former connection is lost
        except RefusedError as exc:
            self._children.refuse(peer, exc)
            return
        if hello.incarnation > self._recorded.promised and shard.description is not None:
            self._recorded = self._recorded._replace(promised=hello.incarnation)
            self._outbox.actions.append(RecordAttempt(self._outbox.attempt, self._recorded))
        self._outbox.send_all((peer,), self._standing(), self._digests or None)

    def adopt(self, m: wire.Adopt, *_: object) -> wire.Adopt | bool | None:
        """An attempt counts; it, if it can be taken over now; True: the store is emptied first."""
        outbox = self._outbox
        ours, theirs = (outbox.generation, outbox.attempt), (m.generation, m.attempt)
        if self.is_enlisted and theirs <= ours:
            if theirs == ours:
                self.welcome()
            return None
        if m.attempt < outbox.attempt:
            return None
        return self._follow(m) or (True if m.filling else None)

    def verdict(self, m: wire.Verdict, *_: object) -> Judgement | None:
        """How the open step comes out at all nodes."""
        step, attempt = self._steps.open, self._outbox.attempt
        if self._filling.number and not m.applied and m.step == self._outbox.step:
            step = self._steps.at(m.step)
            step.is_stated = True  # its sums may never be complete here, and are void
        if step is None or m.step != step.number or not step.is_stated or step.verdict:
            return None  # of another step, or of one that this start has not stated; or known
        if m.applied and len(m.norms) != 1 + len(step.stated.all_clips(self._shard.norm_type)):
            return None
        if not self._is_of_now(m) or m.attempt != attempt + (not m.applied):
            return None  # of an attempt that is not known yet, or over
        self._asked.pop("measured")
        return Judgement(m.applied, m.norms, m.attempt)

    def resolved(self, m: wire.Resolved, *_: object) -> None:
        """All nodes are prepared: this one decides."""
        is_ours = self._state.has_prepared(m.version, m.attempt)
        if is_ours and self._is_of_now(m) and not self._state.is_sealing:  # E2; once
            self._asked.pop("prepared")
            self._state.decide()

    def refused(self, m: wire.Refuse, *_: object) -> None:
        """This node can be none of its job."""
        code = OLDER_STATE_CODE if m.is_older else LEFT_OUT_CODE if m.is_left_out else "E500"
        text = f"optimizer node {self._shard.node.number}: {m.text}"
        self._outbox.actions.append(GiveUp(text, code))

    # ---------------------------------------------------------------------- the open step

    def measured(self, step: int, squares: Sequence[Squares | None]) -> None:
        """The sums of this node are complete; None: one of that stripe is not finite."""
        message = self._outbox.stamped(wire.Measured, step=step)
        self._ask("measured", message, encode_all(squares))

    def prepared(self, version: int, digests: bytes) -> wire.Adopt | None:
        """A version is durable here; the attempt that waited for that, if it can be taken over."""
        self._digests = digests
        if self._ahead is not None:
            return self._follow(self._ahead)
        message = self._outbox.stamped(wire.Prepared, version=version)
        self._ask("prepared", message, digests or None)
        return None

    # ---------------------------------------------------------------------- attempts

    @property
    def awaits_filling(self) -> bool:
        """True while an attempt waits for the store to be emptied: nothing is begun under the one
        before."""
        m = self._ahead
        return m is not None and m.filling not in (0, self._filling.number)

    def begin_filling(self) -> None:
        """Have the store emptied: nothing is under way to it, or from it."""
        m = self._ahead
        if m is not None and self._beginning != m.filling:
            self._beginning = m.filling
            description = self._children.members.description
            self._outbox.actions.append(BeginFilling(description, m.step))

    def request_abort(self, request: AbortRequest) -> bool:
        """The switch alone gives attempts up: what it sent does not fit together."""
        cancel = self._outbox.stamped(wire.Cancel, text=request.text[:900], lost=0)
        self._ask("cancel", cancel, None)
        return False

    def waiting(self) -> wire.Adopt | None:
        """The attempt that waited for the store, if it can be taken over."""
        return None if self._ahead is None else self._follow(self._ahead)

    def taken_over(self, m: wire.Adopt) -> Epoch:
        """An attempt is taken over; the epoch to record with it."""
        self._ahead, self.is_enlisted = None, True
        if not m.filling:
            self._filling.begin(0)
            self._shard.hold(0)
        self._outbox.epoch, self._outbox.generation = m.epoch, m.generation
        self._asked.clear()
        self._recorded = Epoch(m.epoch, m.members, m.incarnation)
        return self._recorded

    def welcome(self) -> None:
        """All that was of the attempt before is forgotten: the switch may go on."""
        welcome = self._children.welcome(self._limits.push_window_bytes)
        self._outbox.send_all(self._children.members.peers, welcome)

    def forget(self) -> None:
        """A new attempt: `taken_over` has done it."""

    # ---------------------------------------------------------------------- time

    def tick(self) -> None:
        """Repeat what is due."""
        for message, payload in self._asked.due(self._outbox.now_ns):
            self.repeated_count += 1
            self._outbox.actions.append(Send(self._children.members.peers, message, payload))

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do."""
        return self._asked.next_due_ns()

    # ---------------------------------------------------------------------- helpers

    def _is_of_now(self, m: wire.Message) -> bool:
        return self.is_enlisted and m.generation == self._outbox.generation

    def _ask(self, name: str, message: wire.Message, payload: bytes | None) -> None:
        self._asked.add(name, (message, payload), self._outbox.now_ns)
        self._outbox.send_all(self._children.members.peers, message, payload)

    def _standing(self) -> wire.Standing:
        prepared, is_loaded = self._state.prepared, self._children.loaded
        if self._filling.number:  # what there is is no state
            prepared, is_loaded = None, False
        return self._outbox.stamped(
            wire.Standing, epoch=self._recorded.number, members=self._recorded.members,
            loaded=is_loaded, decided_attempt=self._state.decided_attempt,
            prepared_attempt=0 if prepared is None else prepared.attempt,
        )  # fmt: skip

    def _follow(self, m: wire.Adopt) -> wire.Adopt | None:
        """The attempt if it can be taken over now; else decide what is decided first."""
        before, self._ahead = self._ahead, m
        if m.filling and m.filling != self._filling.number:
            return None  # `begin_filling`
        if self._shard.description is None:
            if m.loaded:
                self._give_up(m.step, None, before)
            elif before is None:  # else it is being made
                self._outbox.actions.append(OpenStore(self._children.members.description))
            return None
        if self._state.is_sealing:
            return None
        ours, theirs = self._state.version, m.step if m.loaded else None
        # It is to count as one that is not being filled, and pages of its version are missing.
        if ours == theirs and not m.filling and not self._filling.is_whole:
            self._give_up(theirs, None, before)
        if ours == theirs:
            return m
        if self._state.has_prepared(theirs, m.decided_attempt):
            self._state.decide()
        else:
            self._give_up(theirs, ours, before)
        return None

    def _give_up(self, theirs: int | None, ours: int | None, before: wire.Adopt | None) -> None:
        """It cannot take an attempt over; `before`: the one that waited for the store until now."""
        if not self.is_enlisted:  # sent to its former start: the switch is to hear from this one
            self._ahead = before
            return
        found, expected = (
            "no version" if version is None else f"version {version}" for version in (ours, theirs)
        )
        self._outbox.actions.append(
            GiveUp(
                f"the state of optimizer node {self._shard.node.number} is at {found}, those of "
                f"the others at {expected}: they are not parts of one state; restore all "
                "directories of the state from the same checkpoint"
            )
        )
