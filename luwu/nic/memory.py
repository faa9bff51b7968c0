"""Memory of payloads: cells for gradients that are pushed, and weights on their way in.

A cell holds one extent, in memory of the transport. The training thread writes it and pushes it; it
is reused when its bytes are no longer needed:

    free -> taken     `Cells.take`      the training thread writes the gradient
    taken -> under way                  pushed: the core may repeat it until it is received
    under way -> received               a receiver that shares our memory may still read it
    received -> free                    all its sends are done

Cells under way stay within `limit_bytes`. While the transport has more memory, `take` does not wait
for receivers that read in place; otherwise it waits for a free cell. That wait ends whatever other
ranks do: a contribution without a slot at the receiver is moved out of shared memory.

Encoded gradients under way may wait for the gradients of other ranks, so a rank that pushes in
another order would wait forever. Therefore the limit is doubled after a time without progress.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from luwu.base.clock import SYSTEM_CLOCK
from luwu.transport.interface import CreditExceeded, Delivery, SendHandle

ExtentRuns = dict[int, tuple[tuple[int, int], ...]]
"""Extent -> (start, length) of its runs, in bytes of the unit's flat vector."""
WaitUntil = Callable[[Callable[[], bool], str, int | None], None]
"""`Mailbox.wait_until`: block until a condition holds; its name, for people; its era."""


class ExtentGradient(NamedTuple):
    """One rank's gradient of one extent, on its way to a push."""

    extent: int
    cell: Any
    """The `Cell` that holds it; None: this rank has no gradient for the extent."""
    absent: int = 0
    """Bitmap of the extent's segments without a gradient, which hold zeros in the cell."""


class Cell:
    """The gradient of one extent."""

    __slots__ = ("data", "is_needed", "memory", "sends")

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        """The whole memory."""
        self.data = memory
        """The bytes to push."""
        self.is_needed = True
        """True while the training thread uses it, or the core may send it again."""
        self.sends: list[SendHandle] = []
        """Sends of the current gradient."""

    @property
    def is_free(self) -> bool:
        """True if it is not needed and all sends are done."""
        return not self.is_needed and all([send.done for send in self.sends])

    def use(self, nbytes: int) -> None:
        """Start a use of so many bytes."""
        self.data = self.memory[:nbytes]
        self.sends = []
        self.is_needed = True


class Cells:
    """The cells of one worker, for gradients or for what they are encoded to; one thread takes
    them. Only the training thread may wait."""

    def __init__(
        self, reserve: Callable[[int], memoryview], wait_until: WaitUntil, limit_bytes: float,
        patience_s: float = math.inf,
    ) -> None:  # fmt: skip
        """`patience_s`: seconds without progress before the limit is doubled."""
        self._reserve, self._wait_until = reserve, wait_until
        self._patience_s = patience_s
        self._limit_bytes = limit_bytes
        self._cells: deque[Cell] = deque()
        """The least recently taken first."""
        self.watch(lambda memory: None, lambda memory: None)

    def watch(
        self, reserved: Callable[[memoryview], object], dropped: Callable[[memoryview], object]
    ) -> None:
        """Call these when memory is reserved for cells, and before it is released."""
        self._reserved, self._dropped = reserved, dropped

    def take_now(self, nbytes: int) -> Cell | None:
        """A cell, or None where `take` would wait."""
        found = self._reused(nbytes, 2 * nbytes)
        if found is not None:
            return found
        under_way_bytes = [cell.data.nbytes for cell in self._cells if cell.is_needed]
        if under_way_bytes and sum(under_way_bytes) + nbytes > self._limit_bytes:
            return None
        try:
            cell = self._make(nbytes)
        except CreditExceeded:
            found = self._reused(nbytes, math.inf)
            if found is not None:
                return found
            self._drop_free()  # smaller ones: together their memory may do
            try:
                cell = self._make(nbytes)
            except CreditExceeded:
                return None
        self._cells.append(cell)
        return cell

    def _reused(self, nbytes: int, bytes_max: float) -> Cell | None:
        """A free cell of `nbytes` to `bytes_max`, for a new gradient."""
        for cell in self._cells:
            if nbytes <= cell.memory.nbytes <= bytes_max and cell.is_free:
                self._cells.remove(cell)
                cell.use(nbytes)
                self._cells.append(cell)
                return cell
        return None

    def take(self, nbytes: int) -> Cell:
        """Wait for a cell. Raises StepAborted; CreditExceeded if none can ever fit."""
        while (found := self.take_now(nbytes)) is None:
            if not self._cells:
                return self._make(nbytes)  # raises the reason
            self._wait_for_room(nbytes)
        return found

    def _wait_for_room(self, nbytes: int) -> None:
        free_count, cell = self._free_count(), self._under_way()
        end_ns = SYSTEM_CLOCK.now_ns() + self._patience_s * 1e9

        def has_moved() -> bool:
            return self._free_count() > free_count or (cell is not None and not cell.is_needed)

        what = f"room for {nbytes} bytes of gradient"
        self._wait_until(lambda: has_moved() or SYSTEM_CLOCK.now_ns() >= end_ns, what, None)
        if not has_moved():
            self._limit_bytes *= 2

    def _under_way(self) -> Cell | None:
        return next((cell for cell in self._cells if cell.is_needed), None)

    def _free_count(self) -> int:
        return sum(cell.is_free for cell in self._cells)

    def _make(self, nbytes: int) -> Cell:
        memory = self._reserve(nbytes)
        self._reserved(memory)
        return Cell(memory)

    def _drop_free(self) -> None:
        for cell in [cell for cell in self._cells if cell.is_free]:
            self._dropped(cell.memory)
            self._cells.remove(cell)


def private_memory(nbytes: int) -> memoryview:
    """Memory that is sent by copying."""
    return memoryview(bytearray(nbytes))


class SharedWeights:
    """One unit's weights in their sender's memory, which stays unchanged until `release`."""

    def __init__(
        self, address: int, nbytes: int, mapping: memoryview, at_release: Callable[[], object]
    ) -> None:
        """`at_release` is called once."""
        self.address, self.nbytes, self.mapping = address, nbytes, mapping
        """The last reference leaves the memory mapped, after `release` too."""
        self._at_release: Callable[[], object] | None = at_release

    def release(self) -> None:
        """The weights are not read any more; may be repeated."""
        at_release, self._at_release = self._at_release, None
        if at_release is not None:
            at_release()


class IncomingWeights:
    """The weights of one pull, extent by extent. Only the I/O thread uses it.

    A unit whose extents all came at places of their own stays there, if the pull allows it: nothing
    is copied. Otherwise each extent is copied to memory of the worker's own, which is requested
    when the first byte is to be written. Deliveries are released at once: what lies in a place
    stays there until it is let go (`board.py`).
    """

    def __init__(
        self, memory: Callable[[], memoryview], runs: ExtentRuns, *, in_place: bool
    ) -> None:
        self._memory, self._runs, self._may_stay = memory, runs, in_place
        self._into: memoryview | None = None
        self.placed: dict[int, memoryview] = {}
        """Weights that came at places of their own, by extent."""

    def add(self, extent: int, delivery: Delivery, *, is_placed: bool) -> None:
        """Weights of an extent, maybe at their place; those that come later replace the earlier."""
        weights = delivery.buffers[0]
        self.placed.pop(extent, None)
        if is_placed:
            self.placed[extent] = weights
        if not (is_placed and self._may_stay):
            self._copy(extent, weights)
        delivery.release()

    def finish(self) -> bool:
        """All extents are complete: True if they are used in their places, False if copied."""
        if not self._may_stay:
            return False
        if len(self.placed) == len(self._runs):
            return True
        for extent, weights in self.placed.items():
            self._copy(extent, weights)
        return False

    def _copy(self, extent: int, weights: memoryview) -> None:
        if self._into is None:
            self._into = self._memory()
        target, source = (np.frombuffer(each, np.uint8) for each in (self._into, weights))
        at = 0
        for start, length in self._runs[extent]:
            np.copyto(target[start : start + length], source[at : at + length])
            at += length
