"""The switch as a state machine: N children in, one stream to the parent, one copy back to all.

Its children may be workers or other switches, its parent a switch or the optimizer node; it never
needs to know which. Pure: an event and a time in, actions out.

    a child sends       the switch                                        the child receives
    Hello               notes it; all in: sends one Hello to the parent   Welcome | Refuse
    Load                sends each chunk to the parent once               Received
    Push                fills a slot; full: Sum, then one Push up         Received
    Pull                sends what it has, or asks the parent once        Weights, Received
    Begin               waits for all, compares, sends one                Received
    Commit              waits for all, compares, sends one                Verdict, then Decided
    Propose             waits for all, combines, sends one                Agreed
    Cancel              asks the parent to give the attempt up            Abort
    Keep                sends it to the parent                            Received
    Leave               when all have left, sends one                     Received
    Present             reports which ranks are present below it          Received
    Open, Read, Shut    of readers, no children: sends them to the node   Opened, Content, Gone

`FROM_CHILD`, `FROM_PARENT` and `RECEIPTS` say which part does it. All of this is soft state. A new
attempt forgets slots and copies; a switch that was started again knows no child, answers `Rejoin`,
and its own Hello makes the node open a new attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from luwu.aggregate import Aggregator
from luwu.base.retry import LAST_RESORT, RetryPolicy
from luwu.base.tree import ranges_text, ranks_of
from luwu.layout import Layout
from luwu.protocol.actions import Payload
from luwu.protocol.children import Children, Member, ranks_text
from luwu.protocol.contribution import PushForm
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink, earliest
from luwu.wire import messages as wire
from luwu.wire.description import parse_description
from luwu.wire.messages import PayloadRule, Role, Verb
from switch_emu.switch.core.actions import Action, Cache, Sum, SwitchLimits
from switch_emu.switch.core.aggregation import Aggregation, RawUp
from switch_emu.switch.core.attachments import Attachments, InitialWeights
from switch_emu.switch.core.attempts import Attempts
from switch_emu.switch.core.lead import Lead
from switch_emu.switch.core.membership import Membership
from switch_emu.switch.core.parents import Parents, parent_names
from switch_emu.switch.core.readers import ReaderRoutes
from switch_emu.switch.core.statements import Agreement, BeginCommit
from switch_emu.switch.core.weights_down import WeightsDown

Bound = tuple[Callable[..., None], int]
"""A method, and how much it is given of (payload, its size)."""

# Which part handles what: a message, or the verb of a receipt, and the method. Methods for children
# are given the child first (those of `OF_ANYONE` its connection), then the message; and the payload
# where the message has one, of data with its size.

FROM_CHILD: Final[Mapping[type[wire.Message], str]] = {
    wire.Open: "readers.up",
    wire.Read: "readers.up",
    wire.Shut: "readers.up",
    wire.Hello: "_hello",
    wire.Present: "membership.present",
    wire.Load: "initial_weights.load",
    wire.Begin: "begin_commit.begin",
    wire.Propose: "agreement.propose",
    wire.Push: "aggregation.push",
    wire.Pull: "weights_down.pull",
    wire.Keep: "attachments.attach",
    wire.Commit: "begin_commit.commit",
    wire.Cancel: "_cancel",
    wire.Leave: "membership.leave",
}
OF_ANYONE: Final = frozenset({wire.Open, wire.Read, wire.Shut, wire.Hello})
"""Handled from any sender; all others of children that have joined."""
OF_ANY_ATTEMPT: Final = frozenset({wire.Present})
"""Handled from any child that has joined; all others only under the attempt that counts."""

FROM_PARENT: Final[Mapping[type[wire.Message], str]] = {
    wire.Opened: "readers.down",
    wire.Content: "readers.down",
    wire.Gone: "readers.down",
    wire.Rejoin: "membership.rejoin",
    wire.Refuse: "membership.refused",
    wire.Welcome: "_welcomed",
    wire.Abort: "_aborted",
    wire.Received: "_received",
    wire.Agreed: "agreement.agreed",
    wire.Weights: "weights_down.weights",
    wire.Verdict: "_judged",
    wire.Decided: "_decided",
}
AT_ANY_TIME: Final = frozenset(
    {wire.Opened, wire.Content, wire.Gone, wire.Rejoin, wire.Refuse, wire.Welcome}
)
"""Handled whichever attempt counts; all others only of the one that this switch has joined."""

RECEIPTS: Final[Mapping[Verb, str]] = {
    Verb.HELLO: "membership.ranks_joined",
    Verb.PRESENT: "membership.present_received",
    Verb.LOAD: "initial_weights.received",
    Verb.BEGIN: "begin_commit.begin_received",
    Verb.PUSH: "aggregation.received",
    Verb.KEEP: "attachments.received",
    Verb.LEAVE: "membership.leave_received",
    Verb.PULL: "weights_down.same",
}


class SwitchCore:
    """See the module. `children` are bitmaps of the ranks below each child.

    `parents_count`: more than one where several optimizer nodes are the parent, which `lead.py`
    leads; `replicas` of them hold each page. Raises ValueError if there is none.
    """

    def __init__(
        self, *, job: int, incarnation: int, children: Sequence[int], rank: int = 0,
        limits: SwitchLimits | None = None, retry: RetryPolicy | None = None,
        parents_count: int = 1, replicas: int = 1,
    ) -> None:  # fmt: skip
        self.limits = limits = limits or SwitchLimits()
        retry = retry or LAST_RESORT
        self.outbox = out = Outbox(job=job, role=Role.SWITCH, rank=rank, incarnation=incarnation)
        self.children = Children(out, children, limits.extent_chunks)
        self.uplink = up = Uplink(out.actions, retry)
        self.parent_names = parent_names(parents_count)
        """Connections to the parents, by number."""
        self.readers = ReaderRoutes(out)
        self.lead: Lead | None = None
        """None: the parent is one."""
        if parents_count > 1:
            parents = Parents(parents_count, replicas)
            self.lead = Lead(out, self.children, parents, self.readers, limits, retry)
        self.attempts = Attempts(out, self.children, up)
        self.membership = Membership(out, self.children, up, self.attempts, limits)
        self.begin_commit = BeginCommit(out, self.children, up, limits.drop_after_ns)
        self.agreement = Agreement(out, self.children, up, self.attempts)
        self.weights_down = WeightsDown(
            out, self.children, up, limits, parent_is_one=self.lead is None
        )
        self.raw_up = RawUp(out, up)
        self.initial_weights = InitialWeights(out, self.children, up)
        self.attachments = Attachments(out, self.children, up)
        self.aggregation = Aggregation(
            out, self.children, up, self.attempts, self.weights_down, self.raw_up, limits
        )  # fmt: skip
        self.pool, self.duplicates = self.aggregation.pool, self.aggregation.duplicates
        self._parts = (
            self.attempts, self.begin_commit, self.agreement, self.weights_down, self.raw_up,
            self.initial_weights, self.attachments, self.aggregation,
        )  # fmt: skip
        """All that forget a step when it is decided, and everything in a new attempt."""
        self._form: PushForm | None = None
        """The required form of pushes; known when the parent has read the description."""
        self._of_children = self._methods(FROM_CHILD)
        self._of_parent = self._methods(FROM_PARENT)
        self._of_receipts = {verb: attrgetter(name)(self) for verb, name in RECEIPTS.items()}

    def _methods(self, table: Mapping[type[wire.Message], str]) -> dict[type[Any], Bound]:
        return {kind: (attrgetter(name)(self), _carried(kind)) for kind, name in table.items()}

    # ---------------------------------------------------------------------- events

    def received(
        self, now_ns: int, peer: str, message: wire.Message, payload: Any = None,
        payload_bytes: int = 0,
    ) -> list[Action]:  # fmt: skip
        """A message came. Data payloads are opaque, those of control messages are bytes."""
        self.outbox.now_ns = now_ns
        if peer not in self.parent_names:
            self._from_child(peer, message, payload, payload_bytes)
        elif self.lead is None:
            self._from_parent(message, payload, payload_bytes)
        else:
            number = self.parent_names.index(peer)
            for each in self.lead.received(number, message, payload):
                data, nbytes = (payload, payload_bytes) if each is message else (None, 0)
                self._from_parent(each, data, nbytes)
        return self._take()

    def summed(self, now_ns: int, done: Sum, payload: Payload, payload_bytes: int) -> list[Action]:
        """The sum that `done` asked for."""
        self.outbox.now_ns = now_ns
        self.aggregation.summed(done, payload, payload_bytes)
        return self._take()

    def cached(
        self, now_ns: int, done: Cache, payload: Payload, payload_bytes: int, *,
        in_place: int = 0,
    ) -> list[Action]:  # fmt: skip
        """The copy that `done` asked for. `in_place`: it lies in one piece with its unit's others,
        in memory that children may read until they commit its step."""
        self.outbox.now_ns = now_ns
        self.weights_down.cached(done, payload, payload_bytes, in_place=in_place)
        return self._take()

    @property
    def cached_layout(self) -> Layout | None:
        """The job's layout, if the weights of all its extents are cached."""
        return self.weights_down.cache.layout

    def reconnected(self, now_ns: int, parents: Sequence[int] = (0,)) -> list[Action]:
        """The connections to these parents, by number, or to their successors, are back."""
        self.outbox.now_ns = now_ns
        if self.lead is not None:
            for number in parents:
                self.lead.reconnected(number)
        self.membership.reconnected()
        return self._take()

    def unanswered(self, now_ns: int) -> list[Action]:
        """An answer could not be used: repeat every request that has none."""
        self.outbox.now_ns = now_ns
        self.uplink.hurry(now_ns)
        self.uplink.tick(now_ns)
        return self._take()

    def lost(self, now_ns: int, peer: str) -> list[Action]:
        """The connection to a child, to one of several parents, or of readers, has ended."""
        self.outbox.now_ns = now_ns
        if peer not in self.parent_names:
            self.readers.lost(peer)
            self.membership.lost(peer)
        elif self.lead is not None:
            self.lead.lost(self.parent_names.index(peer))
        return self._take()

    def tick(self, now_ns: int) -> list[Action]:
        """Repeat what is due."""
        self.outbox.now_ns = now_ns
        for ranks in self.begin_commit.name_late():
            self.membership.silent(ranks)
        self.membership.tick()  # who is silent is reported as missed at once
        self.uplink.tick(now_ns)
        self.weights_down.tick()
        if self.lead is not None:
            self.lead.tick()
            self._receive(self.lead.take_inbound())
        return self._take()

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do; None while nothing waits."""
        return earliest(
            self.uplink.next_tick_ns(), self.membership.next_ns(), self.begin_commit.late_ns(),
            self.weights_down.next_ns(), None if self.lead is None else self.lead.next_tick_ns(),
        )  # fmt: skip

    def _take(self) -> list[Action]:
        actions = self.outbox.take()
        if self.lead is None:
            return actions
        found: list[Action] = []
        while actions:
            found += self.lead.routed(actions)
            self._receive(self.lead.take_inbound())
            actions = self.outbox.take()
        return found

    def _receive(self, messages: Sequence[wire.Message]) -> None:
        for each in messages:
            self._from_parent(each, None, 0)

    # ---------------------------------------------------------------------- messages to methods

    def _from_child(self, peer: str, m: wire.Message, payload: Any, payload_bytes: int) -> None:
        kind = type(m)
        if kind in OF_ANYONE:
            do, carried = self._of_children[kind]
            do(peer, m, *(payload, payload_bytes)[:carried])
            return
        child = self.children.members.of(peer, m.incarnation)
        if child is None:
            self.outbox.ignore(m, payload)
            self.outbox.send(peer, self.outbox.stamped(wire.Rejoin))
        elif kind not in OF_ANY_ATTEMPT and not self.membership.is_current(child, m):
            self.outbox.ignore(m, payload)
        elif kind not in FROM_CHILD:
            self.outbox.ignore(m, payload)
            self.outbox.note("switch.unexpected", peer=peer, message=kind.__name__)
        elif fault := self._fault(child, m, payload, payload_bytes):
            self.outbox.ignore(m, payload)
            self.membership.expel(child, fault)
        else:
            do, carried = self._of_children[kind]
            do(child, m, *(payload, payload_bytes)[:carried])

    def _fault(self, child: Member, m: wire.Message, payload: Any, payload_bytes: int) -> str:
        """Which rule a child's message about an extent breaks, for people; empty if none."""
        if isinstance(m, wire.Push):
            assert self._form is not None, "a child that is not welcomed is not current"
            if not m.contributors or m.contributors & ~child.ranks:
                pushed = ranks_text([m.contributors])
                return f"it pushed for ranks {pushed}, and speaks for {ranks_text([child.ranks])}"
            return self._form.fault(m, payload_bytes, has_payload=payload is not None)
        if isinstance(m, wire.Pull | wire.Propose):
            count = 0 if self._form is None else self._form.extents_count
            last = m.index + (m.count - 1 if isinstance(m, wire.Pull) else 0)
            if last >= count:
                return f"it sent {type(m).__name__} of extent {last}; there are {count}"
        return ""

    def _from_parent(self, m: wire.Message, payload: Any, payload_bytes: int) -> None:
        if type(m) not in FROM_PARENT or not self._is_timely(m):
            self.outbox.ignore(m, payload)
            return
        do, carried = self._of_parent[type(m)]
        do(m, *(payload, payload_bytes)[:carried])

    def _is_timely(self, m: wire.Message) -> bool:
        """True if a message of the parent belongs to the attempt that counts."""
        out = self.outbox
        # The receipt of Hello comes before this switch has joined any attempt.
        if type(m) in AT_ANY_TIME or (isinstance(m, wire.Received) and m.verb is Verb.HELLO):
            return True
        if not self.membership.joined or m.generation < out.generation or m.attempt < out.attempt:
            return False
        # Of a later generation only the Abort that announces it, or a Welcome, is followed.
        return m.generation == out.generation or isinstance(m, wire.Abort)

    def _received(self, m: wire.Received) -> None:
        """The parent has what was sent: the part that sent it learns of it (`RECEIPTS`)."""
        self._of_receipts[m.verb](m)

    # ---------------------------------------------------------------------- what concerns all parts

    def _hello(self, peer: str, m: wire.Hello, description: bytes) -> None:
        """A child joins; the first brings the job's description, and with it the aggregator."""
        self.membership.hello(peer, m, description)
        self.agreement.learn(peer)

    def _cancel(self, child: Member, m: wire.Cancel) -> None:
        """A child asks to give the attempt up."""
        self.attempts.cancel(f"ranks {ranks_text([child.ranks])}: {m.text}", lost=m.lost)

    def _welcomed(self, m: wire.Welcome) -> None:
        """The parent admits the switch to an attempt; so are its children."""
        is_first = self.outbox.generation == 0
        if not self.membership.awaits(m):
            return
        if self._form is None:  # the parent has read the description
            job = parse_description(self.children.members.description, self.limits.extent_chunks)
            self._form = PushForm(job.layout, self.aggregator)
            self.pool.learn(job)
            self.weights_down.cache.learn(job)
            if self.lead is not None:
                self.lead.learn(job)
        # Before the Welcome: by the skip the attempts become the same, and only weights are void.
        skip = m.skip(self.outbox.attempt, self.outbox.generation)
        if skip is not None:
            self._judged(skip)
        if self.membership.welcomed(m):
            self._begin_attempt(m.attempt, m.step)
            self.membership.welcome_children(is_first=is_first)

    def _aborted(self, m: wire.Abort) -> None:
        """An attempt is given up, and a later one counts."""
        former = self.membership.aborted(m)
        if former is not None:
            self._begin_attempt(m.attempt, m.step)
            self.membership.abort_children(former, m.text)
            self._note("switch.abort", step=m.step, attempt=m.attempt, text=m.text)

    def _judged(self, m: wire.Verdict | wire.Decided) -> None:
        """The open step came out; one that is skipped brings its new attempt along."""
        if not self.begin_commit.is_judged_by(m):
            return
        if m.attempt > self.outbox.attempt and not m.applied:  # weights that streamed are void
            # All three are gone once the attempt begins, and belong to the step, which goes on.
            skipped_attempt, hyper = self.outbox.attempt, self.begin_commit.hyper_of(m.step)
            cancel = self.attempts.withdraw()
            self._begin_attempt(m.attempt, m.step)
            self.begin_commit.ask_after_skip(m.step, skipped_attempt, hyper)
            if cancel is not None:  # a skip gives up less than was asked for
                self.attempts.cancel(cancel.text, lost=cancel.lost)
        self.begin_commit.judged(m)
        if m.applied:
            self.weights_down.applied(m.step)

    def _decided(self, m: wire.Decided) -> None:
        """A step is durable: all forget what it needed."""
        if m.step == self.outbox.step:
            self._judged(m)  # the verdict may have been lost
            self.outbox.step = m.step + 1
            self.uplink.answered("commit")
            self._forget(m.step)
            self._note("switch.step", step=m.step, applied=m.applied)
        elif m.step != self.outbox.step - 1 or not self.uplink.answered("late-commit"):
            return
        self.begin_commit.decided(m)

    def _note(self, name: str, **fields: object) -> None:
        """Make a note that the node makes as well: it may be on another host."""
        ranks = ranges_text(ranks_of(self.membership.counted))
        self.outbox.note(name, "INFO", **fields, ranks=ranks)

    def _begin_attempt(self, attempt: int, step: int) -> None:
        self.outbox.attempt, self.outbox.step = attempt, step
        self._forget()
        self.membership.leave_if_all_left()

    def _forget(self, step: int | None = None) -> None:
        """Forget what a decided step needed; without one, in a new attempt, all of the older."""
        for part in self._parts:
            part.forget(step)

    # ---------------------------------------------------------------------- for the shell

    @property
    def finished(self) -> bool:
        """Every child has left, and the parent knows."""
        return self.membership.is_over

    @property
    def is_joined(self) -> bool:
        """The parent has welcomed the switch."""
        return self.membership.joined

    @property
    def aggregator(self) -> Aggregator:
        """The job's; it sums in float32 until the first child has brought the description."""
        return self.agreement.aggregator

    def is_member(self, peer: str) -> bool:
        """True if a connection is that of a child that has joined."""
        return self.children.members.member_at(peer) is not None

    def name_of(self, peer: str) -> str:
        """The name of a connection, as text: `parent`, `ranks 0, 1`."""
        return peer if peer in self.parent_names else self.children.members.name_of(peer)

    def counts(self) -> dict[str, int]:
        """Counters and current sizes."""
        copies, cache = self.weights_down.copies, self.weights_down.cache
        return {
            "repeated_count": self.uplink.repeated_count,
            "duplicates_count": self.duplicates.total(),
            "raw_count": self.raw_up.count,
            "waited_count": self.aggregation.waiting.count,
            "fallback_count": copies.fallback_count,
            **self.pool.counts(),
            "copies_bytes_now": copies.bytes_used,
            "cached_count": cache.hits_count,
            "cache_bytes_now": cache.bytes_used,
        }

    def waits_for(self) -> str:
        """The next event that the switch waits for, as text."""
        if self.is_joined:
            late = self.pool.waits_for(self.children.members.missing)
            late = late or self.begin_commit.waits_for()
            if late:
                return late
        nodes = "" if self.lead is None else self.lead.waits_for()
        answers = f"step {self.outbox.step}: {len(self.uplink)} answers of the parent"
        return nodes or self.membership.waits_for() or answers


def _carried(kind: type[wire.Message]) -> int:
    """How much of (payload, its size) a message brings: nothing, bytes alone, or data and size."""
    if kind.PAYLOAD is PayloadRule.NONE:
        return 0
    return 2 if kind.IS_DATA else 1
