"""Initial weights on their way up, chunk by chunk, before step 0. Pure.

All ranks may send them; each chunk goes up once. Children are sent `Received` when the parent has
it.
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
