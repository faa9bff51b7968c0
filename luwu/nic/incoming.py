"""Incoming weights of a pull: copied to memory of the worker's own, or used where they are.

A unit is used in place if its sender allows it and all its chunks came in memory that is shared
with the sender, one behind the other as in the unit's flat vector. Then nothing is copied, and the
deliveries are released only when the weights are not used any more: their sender writes to that
memory again only when all receivers have released it. Otherwise each chunk is copied to memory of
the worker's own, which is requested when the first byte is to be written.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from luwu.base.address import address_of
from luwu.transport.interface import Delivery


class SharedWeights:
    """One unit's weights in their sender's memory, which stays unchanged until `release`."""

    def __init__(self, address: int, nbytes: int, deliveries: list[Delivery]) -> None:
        self.address, self.nbytes = address, nbytes
        self.mapping = deliveries[0].buffers[0]
        """This reference leaves the memory mapped, after `release` too."""
        self._deliveries = deliveries

    def release(self) -> None:
        """The weights are not read any more; may be repeated."""
        deliveries, self._deliveries = self._deliveries, []
        for delivery in deliveries:
            delivery.release()


class IncomingWeights:
    """The weights of one pull, chunk by chunk. Only the I/O thread uses it."""

    def __init__(
        self, memory: Callable[[], memoryview], ranges: dict[int, tuple[int, int]], *,
        in_place: bool,
    ) -> None:  # fmt: skip
        """`ranges`: chunk -> (start, length) in bytes of the unit's flat vector."""
        self._memory, self._ranges, self._in_place = memory, ranges, in_place
        self._into: memoryview | None = None
        self._shared: dict[int, Delivery] = {}
        """Deliveries that may be used where they are, by chunk."""

    def add(self, chunk: int, delivery: Delivery, *, in_place: bool) -> None:
        """Weights of a chunk; a later delivery of the same chunk replaces the earlier one.

        `in_place`: their sender lets them be used where they are.
        """
        before = self._shared.pop(chunk, None)
        if before is not None:
            before.release()
        if in_place and self._in_place and delivery.is_shared:
            self._shared[chunk] = delivery
        else:
            self._copy(chunk, delivery)

    def finish(self) -> SharedWeights | None:
        """All chunks are complete: the weights if they are used in place, or None if copied."""
        found = self._in_one_piece()
        if found is None:
            for chunk, delivery in self._shared.items():
                self._copy(chunk, delivery)
        self._shared = {}
        return found

    def release(self) -> None:
        """The weights are not needed any more."""
        for delivery in self._shared.values():
            delivery.release()
        self._shared = {}

    def _in_one_piece(self) -> SharedWeights | None:
        """All chunks, if they are one behind the other in shared memory."""
        if not self._shared or len(self._shared) < len(self._ranges):
            return None
        bases = {
            address_of(delivery.buffers[0]) - self._ranges[chunk][0]
            for chunk, delivery in self._shared.items()
        }
        if len(bases) > 1:
            return None
        nbytes = max(start + length for start, length in self._ranges.values())
        return SharedWeights(bases.pop(), nbytes, list(self._shared.values()))

    def _copy(self, chunk: int, delivery: Delivery) -> None:
        if self._into is None:
            self._into = self._memory()
        start, length = self._ranges[chunk]
        target = np.frombuffer(self._into, np.uint8)
        np.copyto(target[start : start + length], np.frombuffer(delivery.buffers[0], np.uint8))
        delivery.release()
