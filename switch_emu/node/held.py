"""How many bytes of gradient sums lie in RAM; what is over the budget is spilled. Pure."""

from __future__ import annotations

from typing import Any

from luwu.wire.actions import Drop, Payload
from switch_emu.node.actions import Spill


class HeldSums:
    """Payloads held until their page is updated, within a budget of bytes.

    `actions` is where `Spill` and `Drop` are appended.
    """

    def __init__(self, actions: list[Any], bytes_max: int) -> None:
        self._actions = actions
        self._bytes_max = bytes_max
        self._bytes_of: dict[int, int] = {}
        self.bytes_used = 0
        self.spilled_count = 0

    def hold(self, payload: Payload | None, payload_bytes: int) -> None:
        """Count a payload in, or spill it if there is no room."""
        if payload is None:
            return
        if self.bytes_used + payload_bytes > self._bytes_max:
            self.spilled_count += 1
            self._actions.append(Spill(payload))
            return
        self._bytes_of[id(payload)] = payload_bytes
        self.bytes_used += payload_bytes

    def let_go(self, payload: Payload | None) -> None:
        """Drop a payload; it may be one that was spilled."""
        if payload is not None:
            self.bytes_used -= self._bytes_of.pop(id(payload), 0)
            self._actions.append(Drop(payload))
