"""Memory for gradients that are pushed: one cell per extent, in memory of the transport.

The training thread writes a cell and pushes it; it is reused when its bytes are no longer needed:

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

from luwu.base.clock import SYSTEM_CLOCK
from luwu.nic.handles import WaitUntil
from luwu.transport.interface import CreditExceeded, SendHandle


class ExtentGradient(NamedTuple):
    """One rank's gradient of one extent, on its way to a push."""

    extent: int
    cell: Any
    """The `Cell` that holds it; None: this rank has no gradient for the extent."""
    absent: int = 0
    """Bitmap of the extent's segments without a gradient, which hold zeros in the cell."""


class Cell:
    """The gradient of one extent."""

    __slots__ = ("_memory", "data", "is_needed", "sends")

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self.data = memory
        """The bytes to push."""
        self.is_needed = True
        """True while the training thread uses it, or the core may send it again."""
        self.sends: list[SendHandle] = []
        """Sends of the current gradient."""

    @property
    def memory(self) -> memoryview:
        """The whole memory."""
        return self._memory

    @property
    def capacity_bytes(self) -> int:
        """Size of the memory."""
        return self._memory.nbytes

    @property
    def is_free(self) -> bool:
        """True if it is not needed and all sends are done."""
        return not self.is_needed and all(send.done for send in self.sends)

    def use(self, nbytes: int) -> None:
        """Start a use of so many bytes."""
        self.data = self._memory[:nbytes]
        self.sends = []
        self.is_needed = True


class Cells:
    """The cells of one worker. `take` is for the training thread."""

    def __init__(
        self, reserve: Callable[[int], memoryview], wait_until: WaitUntil, limit_bytes: int,
        patience_s: float | None = None,
    ) -> None:  # fmt: skip
        """`patience_s`: seconds without progress before the limit is doubled; None: never."""
        self._reserve, self._wait_until = reserve, wait_until
        self._patience_s = patience_s
        self._limit_bytes = limit_bytes
        self._cells: deque[Cell] = deque()
        """The least recently taken first."""
        self._reserved: Callable[[memoryview], object] = _ignore
        self._dropped: Callable[[memoryview], object] = _ignore

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
        if self._under_way_bytes() + nbytes > self._limit_bytes and self._under_way() is not None:
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
            if nbytes <= cell.capacity_bytes <= bytes_max and cell.is_free:
                self._cells.remove(cell)
                cell.use(nbytes)
                self._cells.append(cell)
                return cell
        return None

    def take(self, nbytes: int) -> Cell:
        """Wait for a cell. Raises StepAborted; CreditExceeded if none can ever fit."""
        found = self.take_now(nbytes)
        while found is None:
            if not self._cells:
                return self._make(nbytes)  # raises the reason
            free_count = self._free_count()
            under_way = self._under_way()
            end_ns = self._patience_end_ns()

            def has_moved(count: int = free_count, cell: Cell | None = under_way) -> bool:
                return self._free_count() > count or (cell is not None and not cell.is_needed)

            self._wait_until(
                lambda moved=has_moved, end=end_ns: moved() or SYSTEM_CLOCK.now_ns() >= end,  # type: ignore[misc]
                f"room for {nbytes} bytes of gradient",
                None,
            )
            if not has_moved():
                self._limit_bytes *= 2
            found = self.take_now(nbytes)
        return found

    def _patience_end_ns(self) -> float:
        if self._patience_s is None:
            return math.inf
        return SYSTEM_CLOCK.now_ns() + self._patience_s * 1e9

    def _under_way(self) -> Cell | None:
        return next((cell for cell in self._cells if cell.is_needed), None)

    def _under_way_bytes(self) -> int:
        return sum(cell.data.nbytes for cell in self._cells if cell.is_needed)

    def _free_count(self) -> int:
        return sum(cell.is_free for cell in self._cells)

    def _make(self, nbytes: int) -> Cell:
        memory = self._reserve(nbytes)
        self._reserved(memory)
        return Cell(memory)

    def _drop_free(self) -> None:
        kept: deque[Cell] = deque()
        for cell in self._cells:
            if cell.is_free:
                self._dropped(cell.memory)
            else:
                kept.append(cell)
        self._cells = kept


class EncodedCells:
    """Cells for encoded gradients; the I/O thread takes them and never waits."""

    def __init__(self, reserve: Callable[[int], memoryview]) -> None:
        self._reserve = reserve
        self._cells: list[Cell] = []

    def take(self, nbytes: int) -> Cell:
        """A cell; without memory of the transport, one that is sent as a copy."""
        for cell in self._cells:
            if nbytes <= cell.capacity_bytes <= 2 * nbytes and cell.is_free:
                cell.use(nbytes)
                return cell
        try:
            cell = Cell(self._reserve(nbytes))
        except CreditExceeded:
            return Cell(private_memory(nbytes))
        self._cells.append(cell)
        return cell


def private_memory(nbytes: int) -> memoryview:
    """Memory that is sent by copying."""
    return memoryview(bytearray(nbytes))


def _ignore(memory: memoryview) -> None:
    pass
