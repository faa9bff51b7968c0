"""Gradients on their way from a push to what travels, where an aggregator encodes them. Pure.

    pushed     `Encodings.push`       asks first: Measure; else Encode at once
    measured   `Encodings.measured`   Propose goes to the parent, beside values of earlier chunks
    agreed     `Encodings.agreed`     Encode
    encoded    `Encodings.encoded`    cargo of the uplink, as any push
    received   `Encodings.received`   the gradient is dropped; where sums may overflow: Confirm
    confirmed  `Encodings.confirmed`  it is dropped; or it was no sum, and is pushed as it was, raw

The gradient as it was is held until the push is received (or confirmed), so what a worker has
under way stays bounded by what it may write. A rank without a gradient says so at each stage. The
verdict of a step confirms all that was pushed in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from luwu.aggregate import Aggregator, Float32
from luwu.aggregate.interface import ENCODED
from luwu.base.errors import RemoteProtocolError
from luwu.nic.core.actions import Encode, Gradient, Measure
from luwu.protocol.actions import Drop, Payload
from luwu.protocol.uplink import Cargo, Uplink
from luwu.wire import messages as wire

Key = tuple[int, int, int]
"""(step, part, chunk) of a push."""


@dataclass(frozen=True, slots=True)
class _Held:
    push: wire.Push
    """As it would be said of the gradient as it is."""
    entry: Gradient


def key_of(m: wire.DataMessage) -> Key:
    """Which push a message is about."""
    return m.step, m.part, m.chunk


class Encodings:
    """The encoded pushes of one worker; `actions` is where what is to be done is appended."""

    def __init__(
        self, actions: list[Any], uplink: Uplink, stamped: Callable[..., Any], contributors: int
    ) -> None:
        self._actions, self._uplink, self._stamped = actions, uplink, stamped
        self._contributors = contributors
        self.aggregator: Aggregator = Float32(1)
        """The job's, known from the description; a plain one has nothing to do here."""
        self._held: dict[Key, _Held] = {}
        self.resent_count = 0
        """Chunks that were pushed again as they were."""

    def push(self, now_ns: int, push: wire.Push, entry: Gradient) -> None:
        """A gradient is to be pushed."""
        self._held[key_of(push)] = _Held(push, entry)
        if self.aggregator.asks_first:
            if entry.payload is None:
                self._propose(now_ns, push, b"")
            else:
                self._actions.append(Measure(push, entry.payload))
        else:
            self._encode(now_ns, push, entry, b"")

    def measured(self, now_ns: int, done: Measure, statement: bytes) -> None:
        """What `done` asked for."""
        if self._has(done.push):
            self._propose(now_ns, done.push, statement)

    def agreed(self, now_ns: int, m: wire.Agreed, agreed: bytes) -> None:
        """All have proposed. Raises RemoteProtocolError if this is no answer to what we said."""
        asked = self._uplink.answer(("propose", *key_of(m)))
        if asked is None:
            return
        held = self._held[key_of(m)]
        if held.entry.payload is not None and len(agreed) != len(asked.payload):  # type: ignore[arg-type]
            raise RemoteProtocolError(
                f"chunk {m.chunk}: {len(agreed)} bytes were agreed on, proposed were "
                f"{len(asked.payload)}; the parent has another layout"  # type: ignore[arg-type]
            )
        self._encode(now_ns, held.push, held.entry, agreed)

    def encoded(self, now_ns: int, done: Encode, payload: Payload, payload_bytes: int) -> None:
        """What `done` asked for; the payload belongs to us from now on."""
        if self._has(done.push):
            push = replace(done.push, dtype=ENCODED)
            self._load(now_ns, push, payload, payload_bytes)
        else:
            self._actions.append(Drop(payload))  # the attempt was given up meanwhile

    def received(self, now_ns: int, m: wire.Received) -> None:
        """The parent has the encoded push."""
        held = self._held.get(key_of(m))
        if held is None:
            return
        if not self.aggregator.may_overflow:
            self._let_go(key_of(m))
            return
        confirm = self._stamped(wire.Confirm, step=m.step, part=m.part, chunk=m.chunk)
        self._uplink.ask(now_ns, ("confirm", *key_of(m)), confirm)

    def confirmed(self, now_ns: int, m: wire.Confirmed) -> None:
        """The sum over all ranks is complete, or it is none."""
        key = key_of(m)
        self._uplink.answered(("confirm", *key))
        held = self._held.get(key)
        if held is None or m.fits:
            self._let_go(key)
            return
        del self._held[key]
        self.resent_count += 1
        push = replace(held.push, part=m.part + wire.RESENT_PART, raw=True)
        self._load(now_ns, push, held.entry.payload, held.entry.payload_bytes)

    def judged(self, step: int) -> None:
        """A verdict is said only when all sums of its step are complete."""
        for key in [key for key in self._held if key[0] <= step]:
            self._uplink.answered(("confirm", *key))
            self._let_go(key)

    def forget(self) -> None:
        """A new attempt: nothing of the older is pushed any more; the uplink forgets its own."""
        for key in list(self._held):
            self._let_go(key)

    def _has(self, push: wire.Push) -> bool:
        held = self._held.get(key_of(push))
        return held is not None and held.push is push

    def _let_go(self, key: Key) -> None:
        held = self._held.pop(key, None)
        if held is not None and held.entry.payload is not None:
            self._actions.append(Drop(held.entry.payload))

    def _propose(self, now_ns: int, push: wire.Push, statement: bytes) -> None:
        step, part, chunk = key_of(push)
        propose = self._stamped(
            wire.Propose, step=step, part=part, chunk=chunk, contributors=self._contributors
        )
        self._uplink.ask(now_ns, ("propose", step, part, chunk), propose, statement)

    def _encode(self, now_ns: int, push: wire.Push, entry: Gradient, agreed: bytes) -> None:
        if entry.payload is None:
            self._load(now_ns, push, None, 0)
        else:
            self._actions.append(Encode(push, entry.payload, agreed))

    def _load(
        self, now_ns: int, push: wire.Push, payload: Payload | None, payload_bytes: int
    ) -> None:
        self._uplink.load(now_ns, ("push", *key_of(push)), Cargo(push, payload, payload_bytes))
