"""The worker's side of the protocol as a state machine: push, pull and wait.

`NicCore` turns "give me unit 3 for step 7" into messages, repeats them until answered, and
reports when it is done. It never computes and never waits: an event and a time in, actions out; its
shell (`shell.py`) connects it to the transport and to the training thread.

    the script         sent to the parent              done when
    join               Hello                           Welcome                 -> Joined
    load (rank 0)      Load, every chunk               Received, every chunk   -> Done
    pull               Pull, runs of extents           Weights, every extent   -> Fill each, and the
                                                       verdict of the step before -> Done
    begin              Begin                           Received
    push               Push, every extent, after the   Received, every extent  -> Done
                       verdict of the step before
                       (encoded: see `Encodings`)
    commit             Commit                          Verdict -> Judged, Decided -> StepDecided
    attach             Keep, every piece               Received, every piece
    cancel             Cancel                          Abort                   -> Aborted
    leave              Leave                           Received                -> Left

Only one attempt counts. Messages of an older one are ignored; when a newer one is announced, every
open handle is void, `Aborted` names the step to go on with, and nothing of the old attempt is sent
again. A skipped step is a new attempt too, but only its weights are void: open pulls are requested
again and no worker has to go back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from luwu.aggregate import Aggregator
from luwu.base.retry import LAST_RESORT, RetryPolicy
from luwu.nic.core.actions import Action, Encode, Gradient, Judged, Measure, Refused, StepDecided
from luwu.nic.core.membership import Membership, Welcomed
from luwu.nic.core.requests import Attachments, Encodings, Requests
from luwu.protocol.actions import Payload
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.messages import PayloadRule, Role, Verb

Kind = type[wire.Message] | Verb
"""A kind of message that a parent sends: its class; of a `Received`, the verb it answers."""


class _Push(NamedTuple):
    """Gradients of a handle."""

    handle: Hashable
    step: int
    part: int
    extents: Sequence[Gradient]
    weight: float
    last: bool


class NicCore:
    """One worker; see the module."""

    FROM_PARENT: ClassVar[Mapping[Kind, str]] = {
        wire.Welcome: "_welcome",
        wire.Refuse: "membership.refused",
        wire.Rejoin: "membership.rejoin",
        Verb.HELLO: "membership.missing",
        wire.Abort: "_abort",
        wire.Verdict: "_verdict",
        wire.Decided: "_decided",
        wire.Weights: "requests.weights",
        Verb.LOAD: "_cargo_received",
        Verb.PUSH: "_cargo_received",
        wire.Agreed: "encodings.agreed",
        Verb.BEGIN: "steps.begun",
        Verb.KEEP: "attachments.received",
        Verb.LEAVE: "membership.left",
    }
    """The method for each kind of message; one that carries a payload is given that too.

    Any other message is ignored: its payload is dropped.
    """
    OF_ANY_ATTEMPT: ClassVar[frozenset[Kind]] = frozenset(
        {wire.Welcome, wire.Refuse, wire.Rejoin, Verb.HELLO}
    )
    """Taken before the worker has joined too. All others are ignored then, or if they are older."""
    OF_A_NEWER_ATTEMPT: ClassVar[frozenset[Kind]] = frozenset(
        {wire.Abort, wire.Verdict, wire.Decided}
    )
    """Taken of a newer attempt too. All others are ignored until that is announced: what the worker
    sends next will be answered."""

    def __init__(
        self, *, job: int, rank: int, world_size: int, incarnation: int,
        role: Role = Role.WORKER, retry: RetryPolicy | None = None,
    ) -> None:  # fmt: skip
        self.out = Outbox(job=job, role=role, rank=rank, incarnation=incarnation)
        self.uplink = Uplink(self.out.actions, retry or LAST_RESORT)
        self.membership = Membership(self.out, self.uplink, world_size)
        self.requests = Requests(self.out, self.uplink)
        self.encodings = Encodings(self.out, self.uplink)
        self.steps = Steps(self.out, self.uplink)
        self.attachments = Attachments(self.out, self.uplink)
        self._early: list[_Push] = []
        """Pushes of a rank without samples, which is ahead of the others: they wait for the verdict
        of the step before, since the parent could not take them earlier."""
        self._handlers: dict[Kind, Callable[..., None]] = {
            kind: attrgetter(name)(self) for kind, name in self.FROM_PARENT.items()
        }

    # ---------------------------------------------------------------------- the script

    def join(
        self, now_ns: int, description: bytes, description_hash: str,
        aggregator: Aggregator | None = None, extent_chunks: int = 1,
    ) -> list[Action]:  # fmt: skip
        """Become a member with this job description; the aggregator is the one it names, and
        `extent_chunks` the chunks that this worker sends together at most."""
        self.out.now_ns = now_ns
        if aggregator is not None:
            self.encodings.aggregator = aggregator
        self.membership.join(description, description_hash, extent_chunks)
        return self.out.take()

    def load(self, now_ns: int, handle: Hashable, chunks: Sequence[Gradient]) -> list[Action]:
        """Send initial float32 weights: rank 0, before step 0."""
        self.out.now_ns = now_ns
        self.requests.load(handle, chunks)
        return self.out.take()

    def pull(
        self, now_ns: int, handle: Hashable, step: int, part: int, extents: Sequence[int]
    ) -> list[Action]:
        """Request weights of extents; `part` counts this rank's uses of them within the step."""
        self.out.now_ns = now_ns
        self.requests.pull(handle, step, part, extents)
        return self.out.take()

    def push(
        self, now_ns: int, handle: Hashable, step: int, part: int, extents: Sequence[Gradient],
        *, weight: float = 1.0, last: bool,
    ) -> list[Action]:  # fmt: skip
        """Send gradients; every push carries its rank's weight in its last part."""
        self.out.now_ns = now_ns
        self.requests.open(handle, [entry.index for entry in extents])
        push = _Push(handle, step, part, extents, weight, last)
        if step > self.requests.judged_step + 1:
            self._early.append(push)
        else:
            self._send_push(push)
        return self.out.take()

    def measured(self, now_ns: int, done: Measure, statement: bytes) -> list[Action]:
        """The answer to a `Measure`."""
        self.out.now_ns = now_ns
        self.encodings.measured(done, statement)
        return self.out.take()

    def encoded(
        self, now_ns: int, done: Encode, payload: Payload, payload_bytes: int
    ) -> list[Action]:
        """The answer to an `Encode`."""
        self.out.now_ns = now_ns
        self.encodings.encoded(done, payload, payload_bytes)
        return self.out.take()

    def begin(self, now_ns: int, step: int, hyper: bytes) -> list[Action]:
        """Send the hyper-parameters of a step before its first gradient."""
        self.out.now_ns = now_ns
        self.steps.begin(step, hyper, judged=self.requests.judged_step)
        return self.out.take()

    def commit(
        self, now_ns: int, step: int, parts: int, hyper: bytes, *, skip: bool = False
    ) -> list[Action]:
        """Every push of the step is out; with `skip` it is left out, on all ranks."""
        self.out.now_ns = now_ns
        # Until an attempt is given up, what is pushed again counts as a repetition: with our Commit
        # the step could be decided with what was to be dropped, if Cancel was lost on the way.
        if not self.membership.is_cancelling:
            self.steps.commit(step, parts, hyper, skip=skip)
        return self.out.take()

    def attach(
        self, now_ns: int, step: int, pieces: Sequence[bytes], part: int = 0,
        handle: Hashable = None,
    ) -> list[Action]:  # fmt: skip
        """Store these pieces beside the version that a step makes; of a later part, the one piece
        in place of what was attached late, once the step is decided."""
        self.out.now_ns = now_ns
        self.attachments.attach(step, pieces, part, handle)
        return self.out.take()

    def cancel(self, now_ns: int, text: str) -> list[Action]:
        """Give up what was pushed in this step, on all ranks."""
        self.out.now_ns = now_ns
        self.membership.cancel(text)
        return self.out.take()

    def leave(self, now_ns: int) -> list[Action]:
        """Announce that this worker is done."""
        self.out.now_ns = now_ns
        self.membership.leave()
        return self.out.take()

    def forget(self, handle: Hashable) -> list[Action]:
        """Close a pull that is not needed any more: its answers will be dropped."""
        self.requests.forget(handle)
        return self.out.take()

    def awaits(self, m: wire.Weights) -> bool:
        """True if a pull of this attempt waits for these weights."""
        return m.attempt == self.out.attempt and self.requests.awaits(m)

    def waits_for(self) -> str:
        """The next event that the worker waits for, as text."""
        awaited = self.membership.waits_for() or self.requests.waits_for()
        step = self.steps.committed
        return awaited or ("the script" if step is None else f"the decision of step {step}")

    # ---------------------------------------------------------------------- time, the connection

    def tick(self, now_ns: int) -> list[Action]:
        """Repeat what is due."""
        self.uplink.tick(now_ns)
        return self.out.take()

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do; None while nothing waits."""
        return self.uplink.next_tick_ns()

    def reconnected(self, now_ns: int) -> list[Action]:
        """The connection to the parent, or to its successor, is back."""
        self.out.now_ns = now_ns
        self.membership.reconnected()
        return self.out.take()

    def unanswered(self, now_ns: int) -> list[Action]:
        """An answer could not be used: repeat every request that has none."""
        self.out.now_ns = now_ns
        self.uplink.hurry(now_ns)
        self.uplink.tick(now_ns)
        return self.out.take()

    # ---------------------------------------------------------------------- the parent

    def received(
        self, now_ns: int, message: wire.Message, payload: Any = None, payload_bytes: int = 0
    ) -> list[Action]:
        """A message of the parent was received."""
        self.out.now_ns = now_ns
        kind = message.verb if isinstance(message, wire.Received) else type(message)
        handler = self._handlers.get(kind)
        if handler is None or not self._takes(kind, message):
            self.out.ignore(message, payload)
        elif message.PAYLOAD is PayloadRule.NONE:
            handler(message)
        else:
            handler(message, payload)
        return self.out.take()

    def _takes(self, kind: Kind, m: wire.Message) -> bool:
        """True if a message is of an attempt that counts."""
        if kind in self.OF_ANY_ATTEMPT:
            return True
        if not self.membership.has_joined or m.generation < self.out.generation:
            return False
        attempt = self.out.attempt
        return m.attempt == attempt or (m.attempt > attempt and kind in self.OF_A_NEWER_ATTEMPT)

    def _welcome(self, m: wire.Welcome) -> None:
        welcomed = self.membership.welcomed(m)
        if welcomed is Welcomed.ADMITTED:
            self._clear_requests(m.step - 1)
        elif welcomed is Welcomed.AGAIN:
            skip = m.skip(self.out.attempt, self.out.generation)
            if skip is not None:
                self._verdict(skip)
            if self.membership.is_newer(m):
                self._restart(m, "a peer was started again")
            else:  # only the connection was lost
                self.uplink.hurry(self.out.now_ns)
        elif welcomed is Welcomed.COUNTS_AGAIN:
            self._restart(m, "this rank counts again")

    def _abort(self, m: wire.Abort) -> None:
        if m.attempt > self.out.attempt:
            self._restart(m, m.text)

    def _verdict(self, m: wire.Verdict) -> None:
        if m.applied and m.attempt > self.out.attempt:
            return  # of an attempt that was not announced yet; what is sent next is answered
        if m.step == self.steps.committed and m.step > self.requests.judged_step:
            self._judge(m, is_void=m.attempt > self.out.attempt)

    def _decided(self, m: wire.Decided) -> None:
        if m.step != self.steps.committed:
            return
        if m.step > self.requests.judged_step:  # the verdict was lost
            self._judge(m, is_void=m.attempt > self.out.attempt and not m.applied)
        is_new = m.step >= self.out.step  # else an Abort has announced it, and reset all pulls
        self.out.step = m.step + 1
        self.out.actions.append(StepDecided(m.step, m.applied, m.norms))
        self.out.note("worker.step", "DEBUG", step=m.step, applied=m.applied)
        self.steps.decided()
        self.attachments.decided(m.step)
        if is_new:
            self.requests.decided()

    def _cargo_received(self, m: wire.Received) -> None:
        handle = self.requests.receipt(m)
        if handle is not None:
            if m.verb is Verb.PUSH:
                self.encodings.received(m)
            self.requests.received(handle, m.index)

    # ---------------------------------------------------------------------- all parts together

    def _send_push(self, push: _Push) -> None:
        for entry in push.extents:
            message = self.out.stamped(
                wire.Push, step=push.step, part=push.part, index=entry.index, weight=push.weight,
                last=push.last, contributors=1 << self.out.rank, absent=entry.absent, raw=False,
                dtype=entry.dtype,
            )  # fmt: skip
            if self.encodings.aggregator.is_plain:
                self.requests.send(push.handle, "push", message, entry)
            else:
                self.requests.expect(push.handle, ("push", push.step, push.part, entry.index))
                self.encodings.push(message, entry)
        self.requests.close_if_done(push.handle)

    def _clear_requests(self, judged_step: int) -> None:
        """Every open handle is void."""
        self.out.drop_all(entry.payload for push in self._early for entry in push.extents)
        self._early.clear()
        self.requests.clear(judged_step)

    def _judge(self, m: wire.Verdict | wire.Decided, *, is_void: bool) -> None:
        """How the step came out; void: the weights that streamed ahead are requested again."""
        if is_void:
            self._skip(m.attempt)
        self.out.actions.append(Judged(m.step, m.applied, m.norms))
        self.steps.judged(m.step)
        self.requests.judged(m.step)
        due = [push for push in self._early if push.step <= m.step + 1]
        del self._early[: len(due)]
        for push in due:
            self._send_push(push)

    def _skip(self, attempt: int) -> None:
        """A new attempt that voids weights alone: send everything again under it."""
        self.out.attempt = attempt
        self.uplink.forget()
        self.encodings.clear()
        self.requests.repeat()
        self.steps.repeat()
        self.attachments.repeat()
        self.membership.repeat()

    def _restart(self, m: wire.Abort | wire.Welcome, text: str) -> None:
        """A new attempt that voids all that is open; or the end, if it cannot be joined."""
        action = self.membership.restarted(m, text, self.steps.committed)
        if isinstance(action, Refused):
            self.out.actions.append(action)
            return
        self.uplink.forget()
        self.encodings.clear()
        self.attachments.clear()
        self._clear_requests(action.step - 1)
        self.out.actions.append(action)
        self.membership.repeat()
        self.steps.restart(action.step)


class Steps:
    """The steps of one worker that are begun or committed, and not decided.

    `Begin` waits for the verdict of the step before, which may open a new attempt. `Commit` waits
    for the decision of the step before, and is then repeated until its own step is decided.
    """

    def __init__(self, outbox: Outbox, uplink: Uplink) -> None:
        self._out, self._uplink = outbox, uplink
        self._contributors = 1 << outbox.rank
        self._begin: tuple[int, bytes] | None = None
        """A `Begin` that waits for the verdict of the step before."""
        self._commits: list[tuple[int, int, bytes, bool]] = []
        """Undecided steps in order; the commit of the first one is under way, the others wait."""

    @property
    def committed(self) -> int | None:
        """The step whose commit is under way, and whose decision is awaited."""
        return self._commits[0][0] if self._commits else None

    def begin(self, step: int, hyper: bytes, *, judged: int) -> None:
        """Send the hyper-parameters of a step, now or after the verdict of the step before it.

        `judged` is the last step whose verdict is known.
        """
        self._begin = (step, hyper)
        self.judged(judged)

    def begun(self, m: wire.Received) -> None:
        """The parent has the hyper-parameters of a step."""
        self._uplink.answered(("begin", m.step))

    def commit(self, step: int, parts: int, hyper: bytes, *, skip: bool) -> None:
        """Send that a step is complete, now or after the decision of the step before it."""
        self._commits.append((step, parts, hyper, skip))
        if len(self._commits) == 1:
            self.repeat()

    def judged(self, step: int) -> None:
        """The verdict of a step is known: the next may begin."""
        if self._begin is None or self._begin[0] > step + 1:
            return
        (number, hyper), self._begin = self._begin, None
        begin = self._out.stamped(wire.Begin, step=number, contributors=self._contributors)
        self._uplink.ask(self._out.now_ns, ("begin", number), begin, hyper)

    def decided(self) -> None:
        """The committed step is decided: commit the next."""
        self._commits.pop(0)
        self._uplink.answered("commit")
        self.repeat()

    def restart(self, step: int) -> None:
        """Go back to `step`, the first undecided one; ask for the decisions of those before it."""
        self._begin = None
        self._commits = [commit for commit in self._commits if commit[0] < step]
        self.repeat()

    def repeat(self) -> None:
        """Send the first commit, if there is one; again under a new attempt."""
        if self._commits:
            step, parts, hyper, skip = self._commits[0]
            commit = self._out.stamped(
                wire.Commit, step=step, contributors=self._contributors, parts=parts, skip=skip
            )
            self._uplink.ask(self._out.now_ns, "commit", commit, hyper)
