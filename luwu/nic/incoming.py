"""Weights on their way in: copied to memory of ours, or used where they lie.

A unit is used in place if its sender allows it and all its chunks came in memory that is shared
with the sender, one behind the other as in the unit's flat vector. Then nothing is copied, and the
deliveries are held, not released, as long as the weights are used: their sender writes to a place
again only when everyone who was sent it has given it back. Otherwise each chunk is copied to memory
of the worker's own, which is asked for when the first byte is to be written.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from luwu.base.address import address_of
from luwu.transport.interface import Delivery


class SharedWeights:
    """One unit's weights in their sender's memory; nobody writes there until `release`."""

    def __init__(self, address: int, nbytes: int, deliveries: list[Delivery]) -> None:
        self.address, self.nbytes = address, nbytes
        self.mapping = deliveries[0].buffers[0]
        """Keeps the memory mapped, after `release` too."""
        self._deliveries = deliveries

    def release(self) -> None:
        """The weights are not read any more; may be repeated."""
        deliveries, self._deliveries = self._deliveries, []
        for delivery in deliveries:
            delivery.release()


class Arriving:
    """The chunks of one pull. Used by the I/O thread alone."""

    def __init__(
        self, memory: Callable[[], memoryview], places: dict[int, tuple[int, int]], *,
        in_place: bool,
    ) -> None:  # fmt: skip
        """`places`: chunk -> (start, length) in bytes of the unit's flat vector."""
        self._memory, self._places, self._in_place = memory, places, in_place
        self._into: memoryview | None = None
        self._held: dict[int, Delivery] = {}

    def came(self, chunk: int, delivery: Delivery, *, in_place: bool) -> None:
        """Weights of a chunk; a later delivery of the same chunk replaces the earlier one.

        `in_place`: their sender says that they may be held where they are.
        """
        before = self._held.pop(chunk, None)
        if before is not None:
            before.release()
        if in_place and self._in_place and delivery.is_shared:
            self._held[chunk] = delivery
        else:
            self._copy(chunk, delivery)

    def finish(self) -> SharedWeights | None:
        """All chunks are there: where to use them in place; None: they are in our memory."""
        found = self._shared()
        if found is None:
            for chunk, delivery in self._held.items():
                self._copy(chunk, delivery)
        self._held = {}
        return found

    def release(self) -> None:
        """Nobody wants these weights any more."""
        for delivery in self._held.values():
            delivery.release()
        self._held = {}

    def _shared(self) -> SharedWeights | None:
        if not self._held or len(self._held) < len(self._places):
            return None
        bases = {
            address_of(delivery.buffers[0]) - self._places[chunk][0]
            for chunk, delivery in self._held.items()
        }
        if len(bases) > 1:
            return None
        nbytes = max(start + length for start, length in self._places.values())
        return SharedWeights(bases.pop(), nbytes, list(self._held.values()))

    def _copy(self, chunk: int, delivery: Delivery) -> None:
        if self._into is None:
            self._into = self._memory()
        start, length = self._places[chunk]
        target = np.frombuffer(self._into, np.uint8)
        np.copyto(target[start : start + length], np.frombuffer(delivery.buffers[0], np.uint8))
        delivery.release()
