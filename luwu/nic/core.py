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
    commit             Commit                          Verdict -> Judged, Decided -> Settled
    cancel             Cancel                          Abort                   -> Aborted
    leave              Leave                           Received                -> Left

Only one attempt counts. What arrives under an older one is dropped; when a newer one is announced,
every open handle is void, `Aborted` says at which step to go on, and nothing of the old attempt is
ever said again. A skipped step is a new attempt too, but only its weights are void: open pulls are
asked for again and nobody has to go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from luwu.base.limits import PROTOCOL_VERSION
from luwu.base.outstanding import RetryPolicy
from luwu.nic.actions import (
    Aborted,
    Action,
    Done,
    Fill,
    Gradient,
    Joined,
    Judged,
    Left,
    Refused,
    Settled,
)  # fmt: skip
from luwu.wire.actions import Drop, Payload
from luwu.wire.messages import (
    Abort,
    Begin,
    Cancel,
    Commit,
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


@dataclass(slots=True)
class _Open:
    """A handle that is not done: the chunks still missing."""

    missing: set[int]
    pull: tuple[int, int] | None = None
    """(step, part) of a pull."""
    chunks: tuple[int, ...] = ()


class NicCore(Speaker):
    """See the module."""

    def __init__(
        self, *, job: int, rank: int, world_size: int, incarnation: int,
        role: Role = Role.WORKER, retry: RetryPolicy | None = None,
    ) -> None:  # fmt: skip
        super().__init__(job=job, role=role, rank=rank, incarnation=incarnation)
        self._rank, self._world_size = rank, world_size
        self._uplink = Uplink(self._actions, retry or RetryPolicy())
        self._hello: tuple[bytes, str] | None = None
        self._joined = False
        self._open: dict[int, _Open] = {}
        self._handle_of: dict[tuple[Any, ...], int] = {}
        """What a chunk's answer belongs to: ("pull"|"push"|"load", step, part, chunk) -> handle."""
        self._judged = -1
        """Weights up to this step plus one may be used."""
        self._begin: tuple[int, str, bytes] | None = None
        """A `Begin` that waits for the verdict of the step before."""
        self._commits: list[tuple[int, str, int, bytes]] = []
        """Steps whose commit waits for the decision of the step before; the first is asked for."""
        self._leaving = False
        self._cancelling: str | None = None
        """Why we asked for the attempt to be given up, until it is."""
        self.stale_count = 0

    # ---------------------------------------------------------------------- what the script asks

    def join(self, now_ns: int, description: bytes, description_hash: str) -> list[Action]:
        """Become a member with this job description."""
        self._hello = (description, description_hash)
        self._say_hello(now_ns)
        return self._take()

    def load(self, now_ns: int, handle: int, chunks: Sequence[Gradient]) -> list[Action]:
        """Send initial float32 weights: rank 0, before step 0."""
        self._open[handle] = _Open({entry.chunk for entry in chunks})
        for entry in chunks:
            self._handle_of["load", 0, 0, entry.chunk] = handle
            load = self._ours(Load, step=0, part=0, chunk=entry.chunk)
            name = ("load", 0, 0, entry.chunk)
            self._uplink.load(now_ns, name, Cargo(load, entry.payload, entry.payload_bytes))
        self._close_if_done(handle)
        return self._take()

    def pull(
        self, now_ns: int, handle: int, step: int, part: int, chunks: Sequence[int]
    ) -> list[Action]:
        """Ask for weights of chunks; `part` counts this rank's uses of them within the step."""
        self._open[handle] = _Open(set(chunks), (step, part), tuple(chunks))
        self._ask_for_weights(now_ns, handle)
        self._close_if_done(handle)
        return self._take()

    def push(
        self, now_ns: int, handle: int, step: int, part: int, chunks: Sequence[Gradient],
        *, weight: float = 1.0, last: bool,
    ) -> list[Action]:  # fmt: skip
        """Send gradients; every push carries its rank's weight in its last part."""
        self._open[handle] = _Open({entry.chunk for entry in chunks})
        for entry in chunks:
            name = ("push", step, part, entry.chunk)
            self._handle_of[name] = handle
            push = self._ours(
                Push, step=step, part=part, chunk=entry.chunk, contributors=1 << self._rank,
                weight=weight, last=last, raw=False, dtype=entry.dtype,
            )  # fmt: skip
            self._uplink.load(now_ns, name, Cargo(push, entry.payload, entry.payload_bytes))
        self._close_if_done(handle)
        return self._take()

    def begin(self, now_ns: int, step: int, hyper_hash: str, hyper: bytes) -> list[Action]:
        """State the hyper-parameters of a step before its first gradient."""
        self._begin = (step, hyper_hash, hyper)
        self._say_begin(now_ns)
        return self._take()

    def commit(
        self, now_ns: int, step: int, hyper_hash: str, parts: int, hyper: bytes
    ) -> list[Action]:
        """Every push of the step is out."""
        self._commits.append((step, hyper_hash, parts, hyper))
        if len(self._commits) == 1:
            self._ask_for_decision(now_ns)
        return self._take()

    def cancel(self, now_ns: int, text: str) -> list[Action]:
        """Give up what was pushed in this step, on all ranks."""
        self._cancelling = text[:900]
        self._say_cancel(now_ns)
        return self._take()

    def forget(self, handle: int) -> list[Action]:
        """A pull nobody needs any more: its answers will be dropped."""
        entry = self._open.pop(handle, None)
        if entry is not None and entry.pull is not None:
            for chunk in entry.chunks:
                name = ("pull", *entry.pull, chunk)
                self._handle_of.pop(name, None)
                self._uplink.answered(name)
        return self._take()

    def leave(self, now_ns: int) -> list[Action]:
        """Say goodbye."""
        self._leaving = True
        self._say_leave(now_ns)
        return self._take()

    # ---------------------------------------------------------------------- events

    def received(
        self, now_ns: int, message: Message, payload: Any = None, payload_bytes: int = 0
    ) -> list[Action]:
        """A message of the parent came."""
        m = message
        if isinstance(m, Rejoin):
            if self._hello is not None and not self._uplink.asks("hello"):
                self._say_hello(now_ns)
        elif isinstance(m, Refuse):
            self._actions.append(Refused(m.text))
        elif isinstance(m, Welcome):
            self._welcomed(now_ns, m)
        elif not self._joined or m.generation < self._generation or m.attempt < self._attempt:
            self._stale(m, payload)
        elif isinstance(m, Abort):
            self._abort(now_ns, m, m.text)
        elif isinstance(m, Verdict):
            self._verdict(now_ns, m)
        elif isinstance(m, Decided):
            self._decided(now_ns, m)
        elif m.attempt > self._attempt:
            self._stale(m, payload)  # we were not told yet; what we ask next will be answered
        elif isinstance(m, Weights):
            self._weights(m, payload)
        elif isinstance(m, Received):
            self._received(now_ns, m)
        else:
            self._stale(m, payload)
        return self._take()

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

    def waits_for(self) -> str:
        """What must happen next, for people."""
        if not self._joined:
            return "Welcome: the parent waits for all ranks"
        for name in self._handle_of:
            verb, step, part, chunk = name
            answer = "weights" if verb == "pull" else "a receipt"
            return f"{answer} for the {verb} of step {step}, chunk {chunk}, part {part}"
        if self._commits:
            return f"the decision of step {self._commits[0][0]}"
        return "the script"

    def _welcomed(self, now_ns: int, m: Welcome) -> None:
        asked = self._uplink.answered("hello")
        self._uplink.window_bytes = m.push_window_bytes
        if self._joined and m.attempt < self._attempt and m.generation > self._generation:
            text = (
                f"the node's state knows {m.attempt} attempts and this worker {self._attempt}: it "
                "is an older copy; start the run again on it, or give the node the right --state"
            )
            self._actions.append(Refused(text))
        elif self._joined and m.attempt > self._attempt:
            self._abort(now_ns, m, "a peer was started again")
        elif self._joined:
            self._uplink.hurry(now_ns)
        elif asked:
            self._joined, self._attempt, self._step = True, m.attempt, m.step
            self._epoch, self._generation = m.epoch, m.generation
            self._judged = m.step - 1
            self._actions.append(Joined(m.step, m.loaded))

    def _abort(self, now_ns: int, m: Abort | Welcome, text: str) -> None:
        if m.attempt <= self._attempt:
            return
        self._epoch, self._generation = m.epoch, m.generation
        self._attempt, self._step = m.attempt, m.step
        self._judged = m.step - 1
        self._open.clear()
        self._handle_of.clear()
        self._commits = [commit for commit in self._commits if commit[0] < m.step]
        self._begin = self._cancelling = None
        self._uplink.forget()
        self._actions.append(Aborted(m.step, text, m.loaded))
        if self._leaving:
            self._say_leave(now_ns)
        if self._commits:  # it was decided and we were not told: ask how it came out
            self._ask_for_decision(now_ns)

    def _verdict(self, now_ns: int, m: Verdict) -> None:
        if not self._commits or m.step != self._commits[0][0] or m.step <= self._judged:
            return
        if m.attempt > self._attempt:
            self._skip(now_ns, m.attempt)
        self._judge(now_ns, m)

    def _decided(self, now_ns: int, m: Decided) -> None:
        if not self._commits or m.step != self._commits[0][0]:
            return
        if m.step > self._judged:
            if m.attempt > self._attempt and not m.applied:
                self._skip(now_ns, m.attempt)
            self._judge(now_ns, m)
        self._commits.pop(0)
        self._uplink.answered("commit")
        self._step = m.step + 1
        self._actions.append(Settled(m.step, m.applied, m.grad_norm))
        if self._commits:
            self._ask_for_decision(now_ns)
        for handle, entry in self._open.items():
            if entry.pull is not None and entry.pull[0] == self._step + 1:
                self._ask_for_weights(now_ns, handle)

    def _judge(self, now_ns: int, m: Verdict | Decided) -> None:
        self._judged = m.step
        self._actions.append(Judged(m.step, m.applied, m.grad_norm))
        self._say_begin(now_ns)
        for handle in list(self._open):
            self._close_if_done(handle)

    def _skip(self, now_ns: int, attempt: int) -> None:
        """A new attempt that voids weights alone: ask for them again under it."""
        self._attempt = attempt
        self._uplink.forget()
        for handle, entry in self._open.items():
            if entry.pull is not None:
                entry.missing = set(entry.chunks)
                self._ask_for_weights(now_ns, handle)
        if self._commits:
            self._ask_for_decision(now_ns)
        if self._cancelling is not None:
            self._say_cancel(now_ns)
        if self._leaving:
            self._say_leave(now_ns)

    def _weights(self, m: Weights, payload: Payload) -> None:
        name = ("pull", m.step, m.part, m.chunk)
        handle = self._handle_of.pop(name, None)
        if not self._uplink.answered(name) or handle is None:
            self._stale(m, payload)
            return
        self._actions.append(Fill(handle, m.chunk, payload))
        self._actions.append(Drop(payload))
        self._open[handle].missing.discard(m.chunk)
        self._close_if_done(handle)

    def _received(self, now_ns: int, m: Received) -> None:
        if m.verb in (Verb.PUSH, Verb.LOAD):
            name = ("push" if m.verb is Verb.PUSH else "load", m.step, m.part, m.chunk)
            handle = self._handle_of.pop(name, None)
            if self._uplink.arrived(now_ns, name) and handle is not None:
                self._open[handle].missing.discard(m.chunk)
                self._close_if_done(handle)
        elif m.verb is Verb.BEGIN:
            self._uplink.answered(("begin", m.step))
        elif self._uplink.answered("leave"):
            self._actions.append(Left())

    # ---------------------------------------------------------------------- helpers

    def _ask_for_weights(self, now_ns: int, handle: int) -> None:
        """Not before the step before the last is decided: the parent could not serve it."""
        entry = self._open[handle]
        assert entry.pull is not None
        step, part = entry.pull
        if step > self._step + 1:
            return
        for chunk in entry.chunks:
            name = ("pull", step, part, chunk)
            self._handle_of[name] = handle
            self._uplink.ask(now_ns, name, self._ours(Pull, step=step, part=part, chunk=chunk))

    def _ask_for_decision(self, now_ns: int) -> None:
        step, hyper_hash, parts, hyper = self._commits[0]
        commit = self._ours(
            Commit, step=step, contributors=1 << self._rank, hyper_hash=hyper_hash, parts=parts
        )
        self._uplink.ask(now_ns, "commit", commit, hyper)

    def _close_if_done(self, handle: int) -> None:
        entry = self._open[handle]
        if entry.missing or (entry.pull is not None and entry.pull[0] > self._judged + 1):
            return
        del self._open[handle]
        self._actions.append(Done(handle))

    def _say_cancel(self, now_ns: int) -> None:
        self._uplink.ask(now_ns, "cancel", self._ours(Cancel, text=self._cancelling or ""))

    def _say_leave(self, now_ns: int) -> None:
        leave = self._ours(Leave, contributors=1 << self._rank)
        self._uplink.ask(now_ns, "leave", leave)

    def _say_begin(self, now_ns: int) -> None:
        """Not before the verdict of the step before, which may open a new attempt."""
        if self._begin is None or self._begin[0] > self._judged + 1:
            return
        (step, hyper_hash, hyper), self._begin = self._begin, None
        begin = self._ours(Begin, step=step, contributors=1 << self._rank, hyper_hash=hyper_hash)
        self._uplink.ask(now_ns, ("begin", step), begin, hyper)

    def _say_hello(self, now_ns: int) -> None:
        assert self._hello is not None
        description, description_hash = self._hello
        hello = self._ours(
            Hello, protocol=PROTOCOL_VERSION, world_size=self._world_size,
            contributors=1 << self._rank, description_hash=description_hash,
        )  # fmt: skip
        self._uplink.ask(now_ns, "hello", hello, description)

    def _stale(self, m: Message, payload: Any) -> None:
        self.stale_count += 1
        self._refuse(m, payload)
