"""Weights on their way down: asked for once, kept until every child has its copy.

One entry a (step, use, chunk): who asked, who was served, and the bytes once they came. Children
ask for a chunk once a use (forward, backward, ...), so the entry is done when all were served. A
child that asks when the bytes have gone is fetched for again and counted. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from luwu.protocol.actions import Payload
from luwu.wire.messages import Weights

CopyKey = tuple[int, int, int]
"""(step, part, chunk); the part of a pull is its use within the step."""


@dataclass(slots=True)
class Copy:
    """One chunk of weights, for one use."""

    askers: list[str] = field(default_factory=list)
    served: set[str] = field(default_factory=set)
    weights: Weights | None = None
    payload: Payload | None = None
    payload_bytes: int = 0


class WeightsCopies:
    """All copies a switch keeps, within a budget of bytes."""

    def __init__(self, *, child_count: int, bytes_max: int) -> None:
        self._child_count = child_count
        self._bytes_max = bytes_max
        self._copies: dict[CopyKey, Copy] = {}
        self.bytes_used = 0
        self.fallback_count = 0
        """Pulls that found their copy gone and had to be fetched once more."""

    def serve(self, child_count: int) -> None:
        """So many children will ask in the attempt that begins."""
        self._child_count = child_count

    def asked(self, key: CopyKey, peer: str) -> Copy | None:
        """A child asks. The copy to serve it from now, or None: it must be fetched."""
        copy = self._copies.setdefault(key, Copy())
        if copy.payload is not None:
            copy.served.add(peer)
            return copy
        if peer not in copy.askers:
            if copy.served:
                self.fallback_count += 1
            copy.askers.append(peer)
        return None

    def came(
        self, key: CopyKey, weights: Weights, payload: Payload, payload_bytes: int
    ) -> tuple[str, ...]:
        """The bytes are here; the children to send them to."""
        copy = self._copies[key]
        copy.weights, copy.payload, copy.payload_bytes = weights, payload, payload_bytes
        self.bytes_used += payload_bytes
        askers = tuple(copy.askers)
        copy.served.update(askers)
        copy.askers.clear()
        return askers

    def awaits(self, key: CopyKey) -> bool:
        """Whether a child waits for the bytes of this chunk."""
        copy = self._copies.get(key)
        return copy is not None and bool(copy.askers)

    def trim(self, key: CopyKey) -> list[Payload]:
        """Let go of this copy if all were served or there is no room; payloads to drop."""
        copy = self._copies[key]
        if len(copy.served) < self._child_count and self.bytes_used <= self._bytes_max:
            return []
        return self._let_go(copy)

    def let_go(self, key: CopyKey) -> list[Payload]:
        """No other child will want this copy; payloads to drop."""
        return self._let_go(self._copies[key])

    def forget(self, step_max: int | None = None) -> list[Payload]:
        """Forget all copies, or those up to a step; payloads to drop."""
        dropped: list[Payload] = []
        for key in [k for k in self._copies if step_max is None or k[0] <= step_max]:
            dropped.extend(self._let_go(self._copies.pop(key)))
        return dropped

    def _let_go(self, copy: Copy) -> list[Payload]:
        if copy.payload is None:
            return []
        payload, copy.payload, copy.weights = copy.payload, None, None
        self.bytes_used -= copy.payload_bytes
        return [payload]
