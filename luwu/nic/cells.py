"""Memory for gradients on their way out: one cell a chunk, from where the transport sends best.

A cell is written by the training thread, pushed, and used again when nobody needs its bytes:

    free -> taken     `Cells.take`      the training thread writes the gradient
    taken -> under way                  pushed: the core may repeat it until it is received
    under way -> read                   received; a receiver that shares our memory may still read
    read -> free                        every send of it is done

What is under way stays within `limit_bytes`. A receiver that reads in place is not waited for as
long as the transport has more memory; where it has not, `take` waits until a cell is free. That
ends whatever the other ranks do: what finds no slot at the receiver is moved out of shared memory.

Where gradients are encoded, what is under way may wait for the gradients of other ranks. A rank
that pushes in another order than they do would wait for ever: where nothing has moved for a while,
the limit is doubled.
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
        """What is pushed."""
        self.is_needed = True
        """By the training thread, or by the core, which may have to send it again."""
        self.sends: list[SendHandle] = []
        """Of the present use."""

    @property
    def memory(self) -> memoryview:
        """All of it."""
        return self._memory

    @property
    def capacity_bytes(self) -> int:
        """What fits in."""
        return self._memory.nbytes

    @property
    def is_free(self) -> bool:
        """Nobody reads it and nobody will."""
        return not self.is_needed and all(send.done for send in self.sends)

    def use(self, nbytes: int) -> None:
        """Take it for so many bytes."""
        self.data = self._memory[:nbytes]
        self.sends = []
        self.is_needed = True


class Cells:
    """The cells of one worker. `take` is for the training thread."""

    def __init__(
        self, reserve: Callable[[int], memoryview], wait_until: WaitUntil, limit_bytes: int,
        patience_s: float | None = None,
    ) -> None:  # fmt: skip
        """`patience_s`: how long nothing may move before the limit is doubled; None: for ever."""
        self._reserve, self._wait_until = reserve, wait_until
        self._patience_s = patience_s
        self._limit_bytes = limit_bytes
        self._cells: deque[Cell] = deque()
        """The one that was taken longest ago first."""
        self._reserved: Callable[[memoryview], object] = _ignore
        self._dropped: Callable[[memoryview], object] = _ignore

    def watch(
        self, reserved: Callable[[memoryview], object], dropped: Callable[[memoryview], object]
    ) -> None:
        """Be told of memory when it is reserved for cells, and before it is let go."""
        self._reserved, self._dropped = reserved, dropped

    def take_now(self, nbytes: int) -> Cell | None:
        """A cell, if there is one without waiting."""
        for cell in self._cells:
            if nbytes <= cell.capacity_bytes <= 2 * nbytes and cell.is_free:
                self._cells.remove(cell)
                cell.use(nbytes)
                self._cells.append(cell)
                return cell
        if self._under_way_bytes() + nbytes > self._limit_bytes and self._under_way() is not None:
            return None
        try:
            cell = self._make(nbytes)
        except CreditExceeded:
            self._drop_free()  # of another size: their memory may do
            try:
                cell = self._make(nbytes)
            except CreditExceeded:
                return None
        self._cells.append(cell)
        return cell

    def take(self, nbytes: int) -> Cell:
        """A cell; waits for one. Raises StepAborted; CreditExceeded if it can never fit."""
        found = self.take_now(nbytes)
        while found is None:
            if not self._cells:
                return self._make(nbytes)  # says why it cannot be
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
    """Cells for what is encoded, for the I/O thread, which waits for none of them."""

    def __init__(self, reserve: Callable[[int], memoryview]) -> None:
        self._reserve = reserve
        self._cells: list[Cell] = []

    def take(self, nbytes: int) -> Cell:
        """A cell; where the transport has no more memory, one that travels as a copy."""
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
    """Memory that nothing is sent from but by way of a copy."""
    return memoryview(bytearray(nbytes))


def _ignore(memory: memoryview) -> None:
    pass
