"""The bytes of gradients in RAM, within budgets; what is over a budget is spilled, or waits. Pure.

A gradient that is over the budget waits where it lies, in the window of the child, if its page can
be updated whatever else comes: then its receipt is sent when there is room for it or its page has
been updated. All others are spilled: they wait for more than the disk.
"""

from __future__ import annotations

from luwu.protocol.actions import Payload
from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from switch_emu.node.core.actions import Spill


class GradientBudget:
    """Counts payloads from their arrival until their page is updated."""

    def __init__(
        self, outbox: Outbox, children: Children, bytes_max: int, raw_bytes_max: int | None
    ) -> None:
        self._outbox, self._children = outbox, children
        self._bytes_max = bytes_max
        self._raw_bytes_max = bytes_max if raw_bytes_max is None else raw_bytes_max
        self._bytes_of: dict[int, tuple[int, bool]] = {}
        self._owed: dict[int, tuple[int, wire.Received]] = {}
        """Bytes and receipts of payloads that wait, in the order of their arrival."""
        self.bytes_used = 0
        self._raw_bytes_used = 0
        self.spilled_count = 0
        self.owed_count = 0
        """Gradients whose receipt had to wait."""

    def add(self, payload: Payload | None, payload_bytes: int, *, is_raw: bool) -> None:
        """Count a payload, or spill it if there is no room. Raw: of a single rank."""
        if payload is None:
            return
        over = self.bytes_used + payload_bytes > self._bytes_max
        if over or (is_raw and self._raw_bytes_used + payload_bytes > self._raw_bytes_max):
            self.spilled_count += 1
            self._outbox.actions.append(Spill(payload, is_raw))
            return
        self._bytes_of[id(payload)] = (payload_bytes, is_raw)
        self._count(payload_bytes, is_raw)

    def add_or_owe(self, payload: Payload, payload_bytes: int, receipt: wire.Received) -> None:
        """Count a payload and send its receipt: now, or when there is room."""
        if self._owed or self.bytes_used + payload_bytes > self._bytes_max:
            self.owed_count += 1
            self._owed[id(payload)] = (payload_bytes, receipt)
            return
        self._children.send_all(receipt)
        self.add(payload, payload_bytes, is_raw=False)

    def owes(self, step: int, part: int, extent: int) -> bool:
        """True if the receipt of this gradient waits."""
        found = ((each.step, each.part, each.index) for _, each in self._owed.values())
        return (step, part, extent) in found

    def release(self, payload: Payload | None) -> None:
        """Drop a payload; it may be one that was spilled, or whose receipt waits."""
        if payload is None:
            return
        owed = self._owed.pop(id(payload), None)
        if owed is not None:
            self._children.send_all(owed[1])
        payload_bytes, is_raw = self._bytes_of.pop(id(payload), (0, False))
        self._count(-payload_bytes, is_raw)
        self._outbox.drop(payload)
        while self._owed:
            each, (waiting_bytes, receipt) = next(iter(self._owed.items()))
            if self.bytes_used + waiting_bytes > self._bytes_max:
                break
            del self._owed[each]
            self._bytes_of[each] = (waiting_bytes, False)
            self._count(waiting_bytes, is_raw=False)
            self._children.send_all(receipt)

    def forget(self) -> None:
        """A new attempt: no receipt of the former is sent."""
        self._owed.clear()

    def _count(self, payload_bytes: int, is_raw: bool) -> None:
        self.bytes_used += payload_bytes
        if is_raw:
            self._raw_bytes_used += payload_bytes
