"""Gradients between a push and what travels, where an aggregator encodes them. Pure.

    pushed     `Encodings.push`       Measure, if the aggregator asks all ranks first; else Encode
    measured   `Encodings.measured`   Propose is sent, while earlier extents travel
    agreed     `Encodings.agreed`     Encode
    encoded    `Encodings.encoded`    cargo of the uplink, as any push
    received   `Encodings.received`   the gradient is dropped; where sums may overflow: Confirm
    confirmed  `Encodings.confirmed`  it is dropped; or, if the sum overflowed, pushed again, raw

The gradient itself is stored until the push is received (or confirmed), so what a worker has under
way stays bounded by what it may write. A rank without a gradient takes part in each stage. The
verdict of a step confirms all that was pushed in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from luwu.aggregate import Aggregator, Float32
from luwu.aggregate.interface import ENCODED
from luwu.base.errors import RemoteProtocolError
from luwu.nic.core.actions import Encode, Gradient, Measure
from luwu.protocol.actions import Drop, Payload
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Cargo, Uplink
from luwu.wire import messages as wire

Key = tuple[int, int, int]
"""(step, part, extent) of a push."""


@dataclass(frozen=True, slots=True)
class _Pending:
    push: wire.Push
    """The push of the gradient as it is, not encoded."""
    gradient: Gradient


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
        self._pending: dict[Key, _Pending] = {}
        self.resent_count = 0
        """Extents that were pushed again, raw, because their encoded sum overflowed."""

    def push(self, push: wire.Push, gradient: Gradient) -> None:
        """Encode a gradient and send it."""
        self._pending[key_of(push)] = _Pending(push, gradient)
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
        pending = self._pending[key_of(m)]
        if pending.gradient.payload is not None and len(agreed) != len(asked.payload):  # type: ignore[arg-type]
            raise RemoteProtocolError(
                f"extent {m.index}: {len(agreed)} bytes were agreed on, proposed were "
                f"{len(asked.payload)}; the parent has another layout"  # type: ignore[arg-type]
            )
        self._encode(pending.push, pending.gradient, agreed)

    def encoded(self, done: Encode, payload: Payload, payload_bytes: int) -> None:
        """The answer to an `Encode`; the payload belongs to the core from now on."""
        if self._is_pending(done.push):
            push = replace(done.push, dtype=ENCODED)
            self._load(push, payload, payload_bytes)
        else:
            self._out.actions.append(Drop(payload))  # the attempt was given up meanwhile

    def received(self, m: wire.Received) -> None:
        """The parent has the encoded push."""
        if key_of(m) not in self._pending:
            return
        if not self.aggregator.may_overflow:
            self._release(key_of(m))
            return
        confirm = self._out.stamped(wire.Confirm, step=m.step, part=m.part, index=m.index)
        self._uplink.ask(self._out.now_ns, ("confirm", *key_of(m)), confirm)

    def confirmed(self, m: wire.Confirmed) -> None:
        """The sum over all ranks is complete; if it overflowed, the gradient is pushed raw."""
        key = key_of(m)
        self._uplink.answered(("confirm", *key))
        pending = self._pending.get(key)
        if pending is None or m.fits:
            self._release(key)
            return
        del self._pending[key]
        self.resent_count += 1
        push = replace(pending.push, part=m.part + wire.RESENT_PART, raw=True)
        self._load(push, pending.gradient.payload, pending.gradient.payload_bytes)

    def judged(self, step: int) -> None:
        """The verdict of a step is known, so all its sums are complete."""
        for key in [key for key in self._pending if key[0] <= step]:
            self._uplink.answered(("confirm", *key))
            self._release(key)

    def clear(self) -> None:
        """A new attempt: nothing of the older one is pushed; the uplink clears its own."""
        for key in list(self._pending):
            self._release(key)

    def _is_pending(self, push: wire.Push) -> bool:
        pending = self._pending.get(key_of(push))
        return pending is not None and pending.push is push

    def _release(self, key: Key) -> None:
        pending = self._pending.pop(key, None)
        if pending is not None:
            self._out.drop(pending.gradient.payload)

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
