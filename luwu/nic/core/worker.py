"""The worker's side of the protocol as a state machine: push, pull and wait.

`NicCore` turns "give me unit 3 for step 7" into chunk messages, repeats them until answered, and
says when it is done. It never computes and never waits: an event and a time in, actions out; its
shell (`shell.py`) connects it to the transport and to the training thread.

    the script         the core asks the parent        done when
    join               Hello                           Welcome                 -> Joined
    load (rank 0)      Load, every chunk               Received, every chunk   -> Done
    pull               Pull, every chunk               Weights, every chunk    -> Fill each, and the
                                                       verdict of the step before -> Done
    begin              Begin                           Received
    push               Push, every chunk               Received, every chunk   -> Done
                       (encoded: see `encoding.py`)
    commit             Commit                          Verdict -> Judged, Decided -> Settled
    keep               Keep, every piece               Received, every piece
    cancel             Cancel                          Abort                   -> Aborted
    leave              Leave                           Received                -> Left

Only one attempt counts. What arrives under an older one is dropped; when a newer one is announced,
every open handle is void, `Aborted` says at which step to go on, and nothing of the old attempt is
ever said again. A skipped step is a new attempt too, but only its weights are void: open pulls are
asked for again and nobody has to go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luwu.base.outstanding import RetryPolicy
from luwu.nic.core.actions import Action, Encode, Fill, Gradient, Judged, Measure, Refused, Settled
from luwu.nic.core.attachments import Keepsakes
from luwu.nic.core.encoding import Encodings
from luwu.nic.core.membership import NicMember
from luwu.nic.core.requests import Handles
from luwu.nic.core.steps import Statements
from luwu.protocol.actions import Payload
from luwu.wire import messages as wire
from luwu.wire.kinds import Role, Verb


class NicCore(NicMember):
    """See the module; joining, leaving, and what a new attempt voids are in `membership.py`."""

    def __init__(
        self, *, job: int, rank: int, world_size: int, incarnation: int,
        role: Role = Role.WORKER, retry: RetryPolicy | None = None,
    ) -> None:  # fmt: skip
        super().__init__(job, rank, world_size, incarnation, role, retry)
        self._handles = Handles(self._actions)
        """What was asked for and is not there yet; up to which step weights may be used."""
        self._statements = Statements(self._uplink, self._ours, self._contributors)
        """Begins and commits, each said when the step before allows it."""
        self._keepsakes = Keepsakes(self._uplink, self._ours, self._contributors)
        """What goes beside the versions that are made."""
        self._encodings = Encodings(self._actions, self._uplink, self._ours, self._contributors)
        """Gradients that are encoded before they travel."""

    # ---------------------------------------------------------------------- what the script asks

    def pull(
        self, now_ns: int, handle: int, step: int, part: int, chunks: Sequence[int]
    ) -> list[Action]:
        """Ask for weights of chunks; `part` counts this rank's uses of them within the step."""
        self._handles.open(handle, chunks, pull=(step, part))
        self._ask_for_weights(now_ns, handle)
        self._handles.close_if_done(handle)
        return self._take()

    def push(
        self, now_ns: int, handle: int, step: int, part: int, chunks: Sequence[Gradient],
        *, weight: float = 1.0, last: bool,
    ) -> list[Action]:  # fmt: skip
        """Send gradients; every push carries its rank's weight in its last part."""
        self._handles.open(handle, [entry.chunk for entry in chunks])
        for entry in chunks:
            push = self._ours(
                wire.Push, step=step, part=part, chunk=entry.chunk, weight=weight, last=last,
                contributors=self._contributors, absent=entry.absent, raw=False, dtype=entry.dtype,
            )  # fmt: skip
            if self._encodings.aggregator.is_plain:
                self._send(now_ns, handle, "push", push, entry)
            else:
                self._handles.expect(handle, ("push", step, part, entry.chunk))
                self._encodings.push(now_ns, push, entry)
        self._handles.close_if_done(handle)
        return self._take()

    def measured(self, now_ns: int, done: Measure, statement: bytes) -> list[Action]:
        """What `done` asked for."""
        self._encodings.measured(now_ns, done, statement)
        return self._take()

    def encoded(
        self, now_ns: int, done: Encode, payload: Payload, payload_bytes: int
    ) -> list[Action]:
        """What `done` asked for."""
        self._encodings.encoded(now_ns, done, payload, payload_bytes)
        return self._take()

    @property
    def resent_count(self) -> int:
        """Chunks that were pushed again as they were, because their encoded sum was none."""
        return self._encodings.resent_count

    def begin(self, now_ns: int, step: int, hyper_hash: str, hyper: bytes) -> list[Action]:
        """State the hyper-parameters of a step before its first gradient."""
        self._statements.begin(now_ns, self._handles.judged, step, hyper_hash, hyper)
        return self._take()

    def commit(
        self, now_ns: int, step: int, hyper_hash: str, parts: int, hyper: bytes, *,
        skip: bool = False,
    ) -> list[Action]:  # fmt: skip
        """Every push of the step is out; with `skip` it is left out, on all ranks."""
        self._statements.commit(now_ns, step, hyper_hash, parts, hyper, skip=skip)
        return self._take()

    def keep(self, now_ns: int, step: int, pieces: Sequence[bytes]) -> list[Action]:
        """Keep these beside the version that a step makes."""
        self._keepsakes.keep(now_ns, step, pieces)
        return self._take()

    def _ask_for_weights(self, now_ns: int, handle: int) -> None:
        """Not before the step before the last is decided: the parent could not serve it."""
        for name in self._handles.pull_names(handle, step_max=self._step + 1):
            _, step, part, chunk = name
            self._handles.expect(handle, name)
            pull = self._ours(wire.Pull, step=step, part=part, chunk=chunk)
            self._uplink.ask(now_ns, name, pull)

    # ---------------------------------------------------------------------- what the parent says

    def received(
        self, now_ns: int, message: wire.Message, payload: Any = None, payload_bytes: int = 0
    ) -> list[Action]:
        """A message of the parent came."""
        m = message
        if isinstance(m, wire.Rejoin):
            self._asked_to_rejoin(now_ns)
        elif isinstance(m, wire.Refuse):
            self._actions.append(Refused(m.text, m.is_older))
        elif isinstance(m, wire.Welcome):
            self._welcomed(now_ns, m)
        elif isinstance(m, wire.Received) and m.verb is Verb.HELLO:
            self._heard_joined(m)
        elif not self._joined or m.generation < self._generation or m.attempt < self._attempt:
            self._stale(m, payload)
        elif isinstance(m, wire.Abort):
            if m.attempt > self._attempt:
                self._abort(now_ns, m, m.text)
        elif isinstance(m, wire.Verdict):
            self._verdict(now_ns, m)
        elif isinstance(m, wire.Decided):
            self._decided(now_ns, m)
        elif m.attempt > self._attempt:
            self._stale(m, payload)  # we were not told yet; what we ask next will be answered
        elif isinstance(m, wire.Weights):
            self._weights(m, payload)
        elif isinstance(m, wire.Received):
            self._received(now_ns, m)
        elif isinstance(m, wire.Agreed):
            self._encodings.agreed(now_ns, m, payload)
        elif isinstance(m, wire.Confirmed):
            self._encodings.confirmed(now_ns, m)
        else:
            self._stale(m, payload)
        return self._take()

    def _weights(self, m: wire.Weights, payload: Payload) -> None:
        name = ("pull", m.step, m.part, m.chunk)
        handle = self._handles.answered(name)
        if not self._uplink.answered(name) or handle is None:
            self._stale(m, payload)
            return
        self._actions.append(Fill(handle, m.chunk, payload, m.in_place))
        self._handles.came(handle, m.chunk)

    def _received(self, now_ns: int, m: wire.Received) -> None:
        if m.verb in (Verb.PUSH, Verb.LOAD):
            name = ("push" if m.verb is Verb.PUSH else "load", m.step, m.part, m.chunk)
            if not self._uplink.arrived(now_ns, name):
                return  # of what was not sent yet: a former start of this rank pushed or loaded it
            handle = self._handles.answered(name)
            if handle is not None:
                if m.verb is Verb.PUSH:
                    self._encodings.received(now_ns, m)
                self._handles.came(handle, m.chunk)
        elif m.verb is Verb.BEGIN:
            self._uplink.answered(("begin", m.step))
        elif m.verb is Verb.KEEP:
            self._keepsakes.arrived(now_ns, m)
        else:
            self._heard_leave()

    def _verdict(self, now_ns: int, m: wire.Verdict) -> None:
        if m.applied and m.attempt > self._attempt:
            self.stale_count += 1  # of an attempt we were not told of; what we ask is answered
        elif m.step == self._statements.committed and m.step > self._handles.judged:
            self._judge(now_ns, m, is_void=m.attempt > self._attempt)

    def _decided(self, now_ns: int, m: wire.Decided) -> None:
        if m.step != self._statements.committed:
            return
        if m.step > self._handles.judged:  # the verdict was lost
            self._judge(now_ns, m, is_void=m.attempt > self._attempt and not m.applied)
        is_new = m.step >= self._step  # else an Abort has said so, and what waited is asked for
        self._step = m.step + 1
        self._actions.append(Settled(m.step, m.applied, m.grad_norm))
        self._statements.decided(now_ns)
        self._keepsakes.decided(m.step)
        for handle in self._handles.pulls(step=self._step + 1) if is_new else ():
            self._ask_for_weights(now_ns, handle)

    def _judge(self, now_ns: int, m: wire.Verdict | wire.Decided, *, is_void: bool) -> None:
        """How the step came out; void: the weights that streamed ahead must be asked for again."""
        if is_void:
            self._skip(now_ns, m.attempt)
        self._encodings.judged(m.step)
        self._actions.append(Judged(m.step, m.applied, m.grad_norm))
        self._statements.judged(now_ns, m.step)
        self._handles.judge(m.step)
