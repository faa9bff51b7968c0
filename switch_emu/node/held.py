"""How many bytes of gradient sums lie in RAM; what is over the budget is spilled. Pure."""

from __future__ import annotations

from luwu.wire.actions import Payload


class HeldSums:
    """Payloads held until their page is updated, within a budget of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes_of: dict[int, int] = {}
        self.bytes_used = 0
        self.spilled_count = 0

    def add(self, payload: Payload, payload_bytes: int) -> bool:
        """Count a payload in; False if there is no room and it must be spilled."""
        if self.bytes_used + payload_bytes > self._bytes_max:
            self.spilled_count += 1
            return False
        self._bytes_of[id(payload)] = payload_bytes
        self.bytes_used += payload_bytes
        return True

    def remove(self, payload: Payload) -> None:
        """The payload is dropped; it may be one that was spilled."""
        self.bytes_used -= self._bytes_of.pop(id(payload), 0)
