"""I5: gradients under way are bounded, and a cell is not written while somebody may read it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from luwu.nic.memory import Cell, Cells
from luwu.transport.interface import CreditExceeded


class Send:
    """A send that is done when the test says so."""

    done = False


class Memory:
    """Memory with a limit, as an arena has it; None: without."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.left_bytes = limit_bytes

    def reserve(self, nbytes: int) -> memoryview:
        if self.left_bytes is not None:
            if nbytes > self.left_bytes:
                raise CreditExceeded("no room")
            self.left_bytes -= nbytes
        return memoryview(bytearray(nbytes))


class Waits:
    """Stands for the NIC's wait: what happens meanwhile is `meanwhile`."""

    def __init__(self) -> None:
        self.count = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def wait_until(self, condition: Callable[[], bool], what: str, era: int | None) -> None:
        self.count += 1
        self.meanwhile()
        assert condition(), what


def push(cell: Cell) -> Send:
    send = Send()
    cell.sends.append(send)
    return send


def received(cell: Cell) -> None:
    cell.is_needed = False


def test_what_is_under_way_is_bounded() -> None:
    """I5. Goal: no more than the limit is written and not received; the oldest is waited for."""
    waits = Waits()
    cells = Cells(Memory().reserve, waits.wait_until, limit_bytes=3 * 256)
    taken = [cells.take(256) for _ in range(3)]
    for cell in taken:
        push(cell).done = True
    assert cells.take_now(256) is None
    waits.meanwhile = lambda: received(taken[0])
    assert cells.take(256) is taken[0]
    assert waits.count == 1


def test_a_cell_larger_than_the_limit_travels_alone() -> None:
    """I5. Goal: an extent larger than the limit is not refused, and waits for all others."""
    waits = Waits()
    cells = Cells(Memory().reserve, waits.wait_until, limit_bytes=256)
    first = cells.take(128)
    assert cells.take_now(4096) is None
    received(first)
    push(first)
    large = cells.take(4096)
    assert large.data.nbytes == 4096


def test_a_cell_is_not_written_while_it_is_read() -> None:
    """Goal: received is not read: a receiver that shares our memory may read it later."""
    cells = Cells(Memory().reserve, Waits().wait_until, limit_bytes=1024)
    first = cells.take(256)
    send = push(first)
    received(first)
    second = cells.take(256)
    assert second is not first
    send.done = True
    assert cells.take(256) is first


def test_where_memory_is_bounded_a_reader_is_waited_for() -> None:
    """I5. Goal: with no memory left, `take` waits until a cell is free, and takes that one."""
    waits = Waits()
    cells = Cells(Memory(512).reserve, waits.wait_until, limit_bytes=4096)
    taken = [cells.take(256), cells.take(256)]
    sends = [push(cell) for cell in taken]
    for cell in taken:
        received(cell)
    assert cells.take_now(256) is None

    def read() -> None:
        sends[1].done = True

    waits.meanwhile = read
    assert cells.take(256) is taken[1]


def test_free_cells_of_another_size_make_room() -> None:
    """Goal: memory that free cells of other sizes hold can be had."""

    class Recycled(Memory):
        def reserve(self, nbytes: int) -> memoryview:
            self.left_bytes = 512 - sum(c.memory.nbytes for c in cells._cells)
            return super().reserve(nbytes)

    cells = Cells(Recycled(512).reserve, Waits().wait_until, limit_bytes=4096)
    for _ in range(2):
        received(cells.take(256))
        received(cells.take(100))
    assert cells.take(512).data.nbytes == 512


def test_a_larger_cell_is_used_where_there_is_no_room() -> None:
    """I5. Goal: where free cells fill the memory, a short gradient is written to one of them. They
    are not dropped: their memory may be free only when its last view is gone, somewhere else."""
    cells = Cells(Memory(512).reserve, Waits().wait_until, limit_bytes=4096)
    taken = [cells.take(256), cells.take(256)]
    for cell in taken:
        received(cell)
    short = cells.take(100)
    assert short is taken[0]
    assert short.data.nbytes == 100


def test_what_can_never_fit_is_refused() -> None:
    """I6. Goal: an extent larger than all of the memory is an error, not a wait without end."""
    cells = Cells(Memory(512).reserve, Waits().wait_until, limit_bytes=4096)
    with pytest.raises(CreditExceeded):
        cells.take(1024)


def test_patience_ends_where_ranks_wait_for_each_other() -> None:
    """I5. Goal: where what is under way waits for other ranks, a rank that nothing moves for may
    write more; one that has no such reason waits for ever."""
    waits = Waits()
    cells = Cells(Memory().reserve, waits.wait_until, limit_bytes=2 * 256, patience_s=0.0)
    taken = [cells.take(256) for _ in range(4)]
    assert waits.count == 1  # the limit was doubled
    assert len({id(cell) for cell in taken}) == 4
    without = Cells(Memory().reserve, Waits().wait_until, limit_bytes=2 * 256)
    for _ in range(2):
        without.take(256)
    with pytest.raises(AssertionError, match="room for 256 bytes"):
        without.take(256)
