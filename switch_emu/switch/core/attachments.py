"""Initial weights and attachments on their way up: each piece goes up once. Pure.

All ranks may send initial weights, chunk by chunk, before step 0; attachments are what a worker
wants beside a version of the state. Children are sent `Received` when the parent has a piece.
"""

from __future__ import annotations

from luwu.protocol.actions import Payload
from luwu.protocol.children import Children, Member
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Cargo, Uplink
from luwu.wire import messages as wire
from luwu.wire.messages import Verb


class InitialWeights:
    """See the module."""

    def __init__(self, outbox: Outbox, children: Children, uplink: Uplink) -> None:
        self._outbox, self._children, self._uplink = outbox, children, uplink
        self._sent: set[int] = set()
        """Chunks that went up in this attempt."""

    def forget(self, step: int | None = None) -> None:
        """A new attempt begins without any; a step changes nothing."""
        if step is None:
            self._sent.clear()

    def load(self, child: Member, m: wire.Load, payload: Payload, payload_bytes: int) -> None:
        """A child sends a chunk."""
        if self._children.loaded or m.index in self._sent:
            self._outbox.drop(payload)
            if self._children.loaded or not self._uplink.holds(("load", m.index)):
                self._outbox.send(child.peer, self._outbox.receipt(m, Verb.LOAD))
            return
        self._sent.add(m.index)
        load = self._outbox.stamped(wire.Load, step=0, part=0, index=m.index)
        cargo = Cargo(load, payload, payload_bytes)
        self._uplink.load(self._outbox.now_ns, ("load", m.index), cargo)

    def received(self, m: wire.Received) -> None:
        """The parent has a chunk."""
        if self._uplink.arrived(self._outbox.now_ns, ("load", m.index)):
            self._children.send_all(self._outbox.receipt(m, Verb.LOAD))


class Attachments:
    """See the module."""

    def __init__(self, outbox: Outbox, children: Children, uplink: Uplink) -> None:
        self._outbox, self._children, self._uplink = outbox, children, uplink
        self._arrived: set[tuple[int, int, int, int]] = set()
        """(step, ranks, part, piece) that the parent has."""

    def forget(self, step: int | None = None) -> None:
        """Forget the pieces up to a decided step; without one, all."""
        self._arrived = {key for key in self._arrived if step is not None and key[0] > step}

    def attach(self, child: Member, m: wire.Keep, payload: Payload, payload_bytes: int) -> None:
        """A worker sends a piece."""
        key = (m.step, m.contributors, m.part, m.index)
        if m.contributors & ~child.ranks or m.step > self._outbox.step + 1:
            self._outbox.drop(payload)
        elif key in self._arrived or m.step + (m.part > 0) < self._outbox.step:
            self._outbox.drop(payload)
            self._outbox.send(child.peer, self._outbox.receipt(m, Verb.KEEP, m.contributors))
        elif self._uplink.holds(("keep", *key)):
            self._outbox.drop(payload)
        else:
            keep = self._outbox.stamped(
                wire.Keep, step=m.step, part=m.part, index=m.index, contributors=m.contributors,
                pieces=m.pieces,
            )  # fmt: skip
            cargo = Cargo(keep, payload, payload_bytes)
            self._uplink.load(self._outbox.now_ns, ("keep", *key), cargo)

    def received(self, m: wire.Received) -> None:
        """The parent has a piece."""
        key = (m.step, m.contributors, m.part, m.index)
        if self._uplink.arrived(self._outbox.now_ns, ("keep", *key)):
            self._arrived.add(key)
            self._children.send_all(self._outbox.receipt(m, Verb.KEEP, m.contributors))
