"""Gradients between a push and what travels, where an aggregator encodes them. Pure.

    pushed     `Encodings.push`       Measure, if the aggregator asks all ranks first; else Encode
    measured   `Encodings.measured`   Propose is sent, while earlier extents travel
    agreed     `Encodings.agreed`     Encode
    encoded    `Encodings.encoded`    cargo of the uplink, as any push
    received   `Encodings.received`   the gradient is dropped

The gradient itself is stored until the push is received, so what a worker has under way stays
bounded by what it may write. A rank without a gradient takes part in each stage.
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
        self._release(key_of(m))

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
