"""The bytes of gradients in RAM, within budgets; what is over a budget is spilled. Pure."""

from __future__ import annotations

from luwu.protocol.actions import Payload
from luwu.protocol.outbox import Outbox
from switch_emu.node.core.actions import Spill


class GradientBudget:
    """Counts payloads from their arrival until their page is updated."""

    def __init__(self, outbox: Outbox, bytes_max: int, raw_bytes_max: int | None) -> None:
        self._outbox = outbox
        self._bytes_max = bytes_max
        self._raw_bytes_max = bytes_max if raw_bytes_max is None else raw_bytes_max
        self._bytes_of: dict[int, tuple[int, bool]] = {}
        self.bytes_used = 0
        self._raw_bytes_used = 0
        self.spilled_count = 0

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

    def release(self, payload: Payload | None) -> None:
        """Drop a payload; it may be one that was spilled."""
        if payload is not None:
            payload_bytes, is_raw = self._bytes_of.pop(id(payload), (0, False))
            self._count(-payload_bytes, is_raw)
            self._outbox.drop(payload)

    def _count(self, payload_bytes: int, is_raw: bool) -> None:
        self.bytes_used += payload_bytes
        if is_raw:
            self._raw_bytes_used += payload_bytes
