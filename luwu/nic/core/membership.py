"""The worker as a member of its job: joining, loading, aborts, cancelling and leaving. Pure.

What a first reader may skip: `core.py` shows the course of a step. Here stands which attempt counts
and what brings a new one. `NicMember` keeps the requests that belong to no step, and repeats them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luwu.aggregate import Aggregator
from luwu.base.limits import PROTOCOL_VERSION
from luwu.base.outstanding import RetryPolicy
from luwu.base.tree import ranges_text, ranks_of
from luwu.nic.core.actions import Aborted, Action, Gradient, Joined, Left, Refused
from luwu.nic.core.attachments import Keepsakes
from luwu.nic.core.encoding import Encodings
from luwu.nic.core.requests import Handles
from luwu.nic.core.steps import Statements
from luwu.protocol.lost_steps import lost_steps_text, refusal_text
from luwu.protocol.speaker import Speaker
from luwu.protocol.uplink import Cargo, Uplink
from luwu.wire import messages as wire
from luwu.wire.kinds import Role


class NicMember(Speaker):
    """See the module."""

    _handles: Handles
    _statements: Statements
    _keepsakes: Keepsakes
    _encodings: Encodings

    def __init__(
        self, job: int, rank: int, world_size: int, incarnation: int, role: Role,
        retry: RetryPolicy | None,
    ) -> None:  # fmt: skip
        super().__init__(job=job, role=role, rank=rank, incarnation=incarnation)
        self._contributors, self._world_size = 1 << rank, world_size
        self._uplink = Uplink(self._actions, retry or RetryPolicy())
        self._hello: tuple[bytes, str] | None = None
        self._joined = False
        self._missing = 0
        """Ranks that have not joined, as far as the parent said."""
        self.is_left_out = False
        """The job goes on without us, and we wait to be let in again."""
        self._leaving = False
        self._cancelling: str | None = None
        """Why we asked for the attempt to be given up, until it is."""
        self.stale_count = 0

    def _ask_for_weights(self, now_ns: int, handle: int) -> None:
        raise NotImplementedError

    def _verdict(self, now_ns: int, m: wire.Verdict) -> None:
        """How the step that was committed came out."""
        raise NotImplementedError

    # ---------------------------------------------------------------------- what the script asks

    def join(
        self, now_ns: int, description: bytes, description_hash: str,
        aggregator: Aggregator | None = None,
    ) -> list[Action]:  # fmt: skip
        """Become a member with this job description; the aggregator is the one it names."""
        if aggregator is not None:
            self._encodings.aggregator = aggregator
        self._hello = (description, description_hash)
        self._say_hello(now_ns)
        return self._take()

    def load(self, now_ns: int, handle: int, chunks: Sequence[Gradient]) -> list[Action]:
        """Send initial float32 weights: rank 0, before step 0."""
        self._handles.open(handle, [entry.chunk for entry in chunks])
        for entry in chunks:
            load = self._ours(wire.Load, step=0, part=0, chunk=entry.chunk)
            self._send(now_ns, handle, "load", load, entry)
        self._handles.close_if_done(handle)
        return self._take()

    def cancel(self, now_ns: int, text: str) -> list[Action]:
        """Give up what was pushed in this step, on all ranks."""
        self._cancelling = text[:900]
        self._say_cancel(now_ns)
        return self._take()

    def leave(self, now_ns: int) -> list[Action]:
        """Say goodbye."""
        self._leaving = True
        self._say_leave(now_ns)
        return self._take()

    def forget(self, handle: int) -> list[Action]:
        """A pull nobody needs any more: its answers will be dropped."""
        for name in self._handles.forget(handle):
            self._uplink.answered(name)
        return self._take()

    def waits_for(self) -> str:
        """What must happen next, for people."""
        if not self._joined and self._missing:
            return f"ranks {ranges_text(ranks_of(self._missing))} have not joined"
        if not self._joined:
            return "Welcome: the parent waits for all ranks"
        step = self._statements.committed
        decision = "the script" if step is None else f"the decision of step {step}"
        return self._handles.waits_for() or decision

    # ---------------------------------------------------------------------- events

    def reconnected(self, now_ns: int) -> list[Action]:
        """The connection to the parent, or to its successor, is back."""
        if self._hello is not None:
            self._say_hello(now_ns)
        return self._take()

    def tick(self, now_ns: int) -> list[Action]:
        """Repeat what is due."""
        self._uplink.tick(now_ns)
        return self._take()

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do; None while nothing waits."""
        return self._uplink.next_tick_ns()

    def _asked_to_rejoin(self, now_ns: int) -> None:
        if self._hello is not None and not self._uplink.asks("hello"):
            self._say_hello(now_ns)

    def _heard_joined(self, m: wire.Received) -> None:
        """Others have not joined yet: a person may want to look after them."""
        if not self._joined:
            self._missing = ((1 << self._world_size) - 1) & ~m.contributors
            self._note("worker.misses", "WARNING", rank=self._me["rank"], text=self.waits_for())

    def _welcomed(self, now_ns: int, m: wire.Welcome) -> None:
        asked = self._uplink.answered("hello")
        self._uplink.window_bytes = m.push_window_bytes
        if self._joined and m.attempt <= self._attempt and m.generation > self._generation:
            self._abort(now_ns, m, "the node was started again on an older copy of its state")
        elif self._joined and m.attempt > self._attempt:
            skip = m.skip(self._attempt, self._generation)
            if skip is not None:
                self._verdict(now_ns, skip)
            if m.attempt > self._attempt:
                self._abort(now_ns, m, "a peer was started again")
            else:
                self._uplink.hurry(now_ns)
        elif self._joined:
            self._uplink.hurry(now_ns)
        elif self.is_left_out and m.attempt > self._attempt:
            self._joined, self.is_left_out = True, False
            self._abort(now_ns, m, "this rank counts again")
        elif asked:
            self._joined = True
            self._adopt(m)
            self._actions.append(Joined(m.step, m.loaded))

    def _abort(self, now_ns: int, m: wire.Abort | wire.Welcome, text: str) -> None:
        """A new attempt that voids all that is open."""
        if not m.contributors & self._contributors:
            self._leave_out(now_ns, m, text)
            return
        known, is_older = self._step, m.step < self._step
        if is_older and not (m.redoes and m.loaded):
            self._actions.append(Refused(refusal_text(m.step, known), is_older=True))
            return
        if is_older:
            text = lost_steps_text(m.step, known)
        self._adopt(m)
        self._cancelling = None
        self._uplink.forget()
        self._encodings.forget()
        self._keepsakes.clear()
        self._actions.append(Aborted(m.step, text, m.loaded, is_older=is_older))
        self._say_again(now_ns)
        self._statements.restart(now_ns, m.step)

    def _leave_out(self, now_ns: int, m: wire.Abort | wire.Welcome, text: str) -> None:
        """The job goes on without us: stay in the attempt that is over, and ask to be let in again.

        How our open steps come out, if they do, is no business of ours any more.
        """
        committed = self._statements.committed
        first = m.step if committed is None else min(committed, m.step)
        self._joined, self.is_left_out = False, True
        self._cancelling = None
        self._uplink.forget()
        self._encodings.forget()
        self._keepsakes.clear()
        self._handles.clear(judged=first - 1)
        self._statements.restart(now_ns, first)
        text = f"the job goes on without this rank: {text}"
        self._actions.append(Aborted(first, text, m.loaded, counts=False))
        self._say_again(now_ns)
        self._say_hello(now_ns)

    def _skip(self, now_ns: int, attempt: int) -> None:
        """A new attempt that voids weights alone: ask for them again under it."""
        self._attempt = attempt
        self._uplink.forget()
        self._encodings.forget()
        for handle in self._handles.pulls():
            self._handles.void(handle)
            self._ask_for_weights(now_ns, handle)
        self._statements.ask(now_ns)
        self._keepsakes.ask(now_ns)
        self._say_again(now_ns)

    def _adopt(self, m: wire.Welcome | wire.Abort) -> None:
        self._epoch, self._generation = m.epoch, m.generation
        self._attempt, self._step = m.attempt, m.step
        self._handles.clear(judged=m.step - 1)

    # ---------------------------------------------------------------------- what we say

    def _say_again(self, now_ns: int) -> None:
        """A new attempt began: what belongs to no step must be said under it."""
        if self._cancelling is not None:
            self._say_cancel(now_ns)
        if self._leaving:
            self._say_leave(now_ns)

    def _send(
        self, now_ns: int, handle: int, verb: str, message: wire.DataMessage, entry: Gradient
    ) -> None:
        """Cargo waits its turn until the parent's window has room."""
        name = (verb, message.step, message.part, message.chunk)
        self._handles.expect(handle, name)
        self._uplink.load(now_ns, name, Cargo(message, entry.payload, entry.payload_bytes))

    def _say_hello(self, now_ns: int) -> None:
        assert self._hello is not None
        description, description_hash = self._hello
        hello = self._ours(
            wire.Hello, protocol=PROTOCOL_VERSION, world_size=self._world_size,
            contributors=self._contributors, present=self._contributors, roll=0,
            description_hash=description_hash,
        )  # fmt: skip
        self._uplink.ask(now_ns, "hello", hello, description)

    def _say_cancel(self, now_ns: int) -> None:
        self._uplink.ask(
            now_ns, "cancel", self._ours(wire.Cancel, text=self._cancelling or "", lost=0)
        )

    def _say_leave(self, now_ns: int) -> None:
        leave = self._ours(wire.Leave, contributors=self._contributors)
        self._uplink.ask(now_ns, "leave", leave)

    def _heard_leave(self) -> None:
        if self._uplink.answered("leave"):
            self._actions.append(Left())

    def _stale(self, m: wire.Message, payload: Any) -> None:
        self.stale_count += 1
        self._refuse(m, payload)
