"""What a worker has asked for or sent and is not answered: loads, pulls, pushes, attachments. Pure.

`Requests`: what each handle (an object of the shell) still misses, and whose answer is whose.

    opened      `Requests.open`      every extent (of a load: every chunk) is missing
    sent        `Requests.send`      cargo of a load or push; its receipt is for this handle
                `Requests.pull`      weights are requested; they are for this handle
    answered    `Requests.received`  one of them less; with the last one the handle is done
                `Requests.weights`   the same, of a pull
    judged      `Requests.judged`    a pull is done only after the verdict of the step before
    skipped     `Requests.repeat`    weights that came are void, and are requested again
    aborted     `Requests.clear`     every handle is void

`Encodings`: gradients between a push and what travels, where an aggregator encodes them. The
gradient itself is stored until the push is received, so what a worker has under way stays bounded
by what it may write. A rank without a gradient takes part in each stage.

    pushed      `Encodings.push`     Measure, if the aggregator asks all ranks first; else Encode
    measured    `Encodings.measured` Propose is sent, while earlier extents travel
    agreed      `Encodings.agreed`   Encode
    encoded     `Encodings.encoded`  cargo of the uplink, as any push
    received    `Encodings.received` the gradient is dropped

`Attachments`: sent with a step, stored beside the version it makes (`luwu.attach`).

    attached    `Attachments.attach`    every piece is sent
    received    `Attachments.received`  the parent has a piece
    decided     `Attachments.decided`   the attachment is durable, and is forgotten
    skipped     `Attachments.repeat`    sent again under the new attempt: the step is valid
    aborted     `Attachments.clear`     void: the step is computed again, and attached to again
    replaced    `Attachments.attach`    a later part is sent, and done when the parent has stored it
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from luwu.aggregate import Aggregator, Float32
from luwu.aggregate.interface import ENCODED
from luwu.base.errors import RemoteProtocolError
from luwu.nic.core.actions import Done, Encode, Fill, Gradient, Measure
from luwu.protocol.actions import Drop, Payload
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Cargo, Uplink, neighbours
from luwu.wire import messages as wire
from luwu.wire.messages import Verb

Name = tuple[str, int, int, int]
"""(verb, step, part, index) of a request, and so of its answer."""


@dataclass(slots=True)
class _Request:
    missing: set[int]
    indices: tuple[int, ...]
    pull: tuple[int, int] | None
    """(step, part) of a pull."""

    def pull_names(self) -> list[Name]:
        """The names of a pull's messages; none of a load or push."""
        return [("pull", *self.pull, index) for index in self.indices] if self.pull else []


class Requests:
    """The open handles of one worker."""

    def __init__(self, outbox: Outbox, uplink: Uplink) -> None:
        self._out, self._uplink = outbox, uplink
        self._open: dict[Hashable, _Request] = {}
        self._handle_of: dict[Name, Hashable] = {}
        self.judged_step = -1
        """The last step whose verdict is known: weights for the next may be used."""

    def load(self, handle: Hashable, chunks: Sequence[Gradient]) -> None:
        """Send initial float32 weights."""
        self.open(handle, [entry.index for entry in chunks])
        for entry in chunks:
            load = self._out.stamped(wire.Load, step=0, part=0, index=entry.index)
            self.send(handle, "load", load, entry)
        self.close_if_done(handle)

    def pull(self, handle: Hashable, step: int, part: int, extents: Iterable[int]) -> None:
        """Request weights of extents."""
        self.open(handle, extents, pull=(step, part))
        self._ask(handle)
        self.close_if_done(handle)

    def open(
        self, handle: Hashable, indices: Iterable[int], pull: tuple[int, int] | None = None
    ) -> None:
        """A new handle that misses these extents, or chunks; of a pull, its (step, part)."""
        indices = tuple(indices)
        self._open[handle] = _Request(set(indices), indices, pull)

    def send(self, handle: Hashable, verb: str, message: wire.DataMessage, entry: Gradient) -> None:
        """Send an entry as soon as the parent's window has room."""
        name = (verb, message.step, message.part, message.index)
        self.expect(handle, name)
        cargo = Cargo(message, entry.payload, entry.payload_bytes)
        self._uplink.load(self._out.now_ns, name, cargo)

    def expect(self, handle: Hashable, name: Name) -> None:
        """The answer of this name is for this handle."""
        self._handle_of[name] = handle

    def awaits(self, m: wire.Weights) -> bool:
        """True if a pull waits for these weights."""
        return ("pull", m.step, m.part, m.index) in self._handle_of

    def weights(self, m: wire.Weights, payload: Payload) -> None:
        """Weights of an extent were received; ignored if no pull waits for them."""
        name = ("pull", m.step, m.part, m.index)
        handle = self._handle_of.pop(name, None)
        if not self._uplink.answered(name) or handle is None:
            self._out.ignore(m, payload)
            return
        self._out.actions.append(Fill(handle, m.index, payload, m.in_place))
        self.received(handle, m.index)

    def receipt(self, m: wire.Received) -> Hashable:
        """The parent has an entry of a load or push; the handle it belongs to.

        None if there is none, or if the entry was not sent yet: then the receipt is for a former
        start of this rank, which loaded or pushed the same.
        """
        name = ("push" if m.verb is Verb.PUSH else "load", m.step, m.part, m.index)
        if not self._uplink.arrived(self._out.now_ns, name):
            return None
        return self._handle_of.pop(name, None)

    def received(self, handle: Hashable, index: int) -> None:
        """One extent, or chunk, of a handle is answered."""
        self._open[handle].missing.discard(index)
        self.close_if_done(handle)

    def close_if_done(self, handle: Hashable) -> None:
        """Report `Done` of a handle that misses nothing and may be used."""
        entry = self._open[handle]
        if entry.missing or (entry.pull is not None and entry.pull[0] > self.judged_step + 1):
            return  # weights are tentative until the verdict of the step before
        del self._open[handle]
        self._out.actions.append(Done(handle))

    def judged(self, step: int) -> None:
        """The verdict of a step is known: weights for the next may be used."""
        self.judged_step = step
        for handle in list(self._open):
            self.close_if_done(handle)

    def decided(self) -> None:
        """A step is decided: request weights of pulls that were too early before."""
        for handle, entry in self._open.items():
            if entry.pull is not None and entry.pull[0] == self._out.step + 1:
                self._ask(handle)

    def repeat(self) -> None:
        """Request all weights again under a new attempt; those that came must not be used."""
        for handle, entry in self._open.items():
            if entry.pull is not None:
                entry.missing = set(entry.indices)
                self._ask(handle)

    def forget(self, handle: Hashable) -> None:
        """Close a pull that is not needed any more: its answers will be dropped."""
        entry = self._open.pop(handle, None)
        for name in () if entry is None else entry.pull_names():
            self._handle_of.pop(name, None)
            self._uplink.answered(name)

    def clear(self, judged_step: int) -> None:
        """A new attempt: every open handle is void; `judged_step` is the last step that counts."""
        self.judged_step = judged_step
        self._open.clear()
        self._handle_of.clear()

    def waits_for(self) -> str:
        """The first answer that is missing, for people; empty if none is."""
        for verb, step, part, index in self._handle_of:
            answer = "weights" if verb == "pull" else "a receipt"
            what = "chunk" if verb == "load" else "extent"
            return f"{answer} for the {verb} of step {step}, {what} {index}, part {part}"
        return ""

    def _ask(self, handle: Hashable) -> None:
        """Not before the step before the last is decided: the parent could not serve it."""
        entry = self._open[handle]
        assert entry.pull is not None
        step, part = entry.pull
        if step > self._out.step + 1:
            return
        names = entry.pull_names()
        for name in names:
            self._handle_of[name] = handle
        for first, count in neighbours(entry.indices):
            pull = self._out.stamped(
                wire.Pull, step=step, part=part, index=entry.indices[first], count=count
            )
            self._uplink.ask_for(self._out.now_ns, names[first : first + count], pull)


Key = tuple[int, int, int]
"""(step, part, extent) of a push."""


def key_of(m: wire.DataMessage) -> Key:
    """The push that a message is about."""
    return m.step, m.part, m.index


class Encodings:
    """The encoded pushes of one worker."""

    def __init__(self, outbox: Outbox, uplink: Uplink) -> None:
        self._out, self._uplink = outbox, uplink
        self._contributors = 1 << outbox.rank
        self.aggregator: Aggregator = Float32(1)
        """The job's, set when the worker joins; a plain one has nothing to do here."""
        self._pending: dict[Key, tuple[wire.Push, Gradient]] = {}
        """Pushes of the gradients as they are, not encoded."""

    def push(self, push: wire.Push, gradient: Gradient) -> None:
        """Encode a gradient and send it."""
        self._pending[key_of(push)] = push, gradient
        if self.aggregator.asks_first:
            if gradient.payload is None:
                self._propose(push, b"")
            else:
                self._out.actions.append(Measure(push, gradient.payload))
        else:
            self._encode(push, gradient, b"")

    def measured(self, done: Measure, statement: bytes) -> None:
        """The answer to a `Measure`."""
        if self._is_pending(done.push):
            self._propose(done.push, statement)

    def agreed(self, m: wire.Agreed, agreed: bytes) -> None:
        """All ranks have proposed. Raises RemoteProtocolError if the answer does not fit."""
        asked = self._uplink.answer(("propose", *key_of(m)))
        if asked is None:
            return
        push, gradient = self._pending[key_of(m)]
        if gradient.payload is not None and len(agreed) != len(asked.payload):  # type: ignore[arg-type]
            raise RemoteProtocolError(
                f"extent {m.index}: {len(agreed)} bytes were agreed on, proposed were "
                f"{len(asked.payload)}; the parent has another layout"  # type: ignore[arg-type]
            )
        self._encode(push, gradient, agreed)

    def encoded(self, done: Encode, payload: Payload, payload_bytes: int) -> None:
        """The answer to an `Encode`; the payload belongs to the core from now on."""
        if self._is_pending(done.push):
            push = replace(done.push, dtype=ENCODED)
            self._load(push, payload, payload_bytes)
        else:
            self._out.actions.append(Drop(payload))  # the attempt was given up meanwhile

    def received(self, m: wire.Received) -> None:
        """The parent has the encoded push."""
        if pending := self._pending.pop(key_of(m), None):
            self._out.drop(pending[1].payload)

    def clear(self) -> None:
        """A new attempt: nothing of the older one is pushed; the uplink clears its own."""
        self._out.drop_all(gradient.payload for _, gradient in self._pending.values())
        self._pending.clear()

    def _is_pending(self, push: wire.Push) -> bool:
        pending = self._pending.get(key_of(push))
        return pending is not None and pending[0] is push

    def _propose(self, push: wire.Push, statement: bytes) -> None:
        step, part, extent = key_of(push)
        propose = self._out.stamped(
            wire.Propose, step=step, part=part, index=extent, contributors=self._contributors
        )
        self._uplink.ask(self._out.now_ns, ("propose", step, part, extent), propose, statement)

    def _encode(self, push: wire.Push, gradient: Gradient, agreed: bytes) -> None:
        if gradient.payload is None:
            self._load(push, None, 0)
        else:
            self._out.actions.append(Encode(push, gradient.payload, agreed))

    def _load(self, push: wire.Push, payload: Payload | None, payload_bytes: int) -> None:
        cargo = Cargo(push, payload, payload_bytes)
        self._uplink.load(self._out.now_ns, ("push", *key_of(push)), cargo)


class Attachments:
    """The attachments of one worker's undecided steps."""

    def __init__(self, outbox: Outbox, uplink: Uplink) -> None:
        self._out, self._uplink = outbox, uplink
        self._contributors = 1 << outbox.rank
        self._pieces: dict[int, Sequence[bytes]] = {}
        """Pieces of undecided attachments by step."""
        self._handle: Hashable = None
        """The handle of the later part that is being sent."""

    def attach(
        self, step: int, pieces: Sequence[bytes], part: int = 0, handle: Hashable = None
    ) -> None:
        """Send the pieces of a step's attachment; `handle`: of a later part."""
        if part:
            self._handle = handle
        else:
            self._pieces[step] = pieces
        self._send(step, pieces, part)

    def received(self, m: wire.Received) -> None:
        """The parent has a piece of this rank, or of another one."""
        name = ("keep", m.step, m.part, m.index)
        is_ours = m.contributors == self._contributors
        if is_ours and self._uplink.arrived(self._out.now_ns, name) and m.part:
            self._out.actions.append(Done(self._handle))

    def decided(self, step: int) -> None:
        """A step is decided: its attachment is durable."""
        self._pieces.pop(step, None)

    def repeat(self) -> None:
        """Send all pieces again, under another attempt."""
        for step, pieces in self._pieces.items():
            self._send(step, pieces)

    def clear(self) -> None:
        """All undecided steps are void."""
        self._pieces.clear()

    def _send(self, step: int, pieces: Sequence[bytes], part: int = 0) -> None:
        for index, piece in enumerate(pieces):
            keep = self._out.stamped(
                wire.Keep, step=step, part=part, index=index, contributors=self._contributors,
                pieces=len(pieces),
            )  # fmt: skip
            cargo = Cargo(keep, piece, len(piece))
            self._uplink.load(self._out.now_ns, ("keep", step, part, index), cargo)
