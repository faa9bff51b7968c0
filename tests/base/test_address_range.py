"""Addresses that stay while the memory behind them comes and goes."""

from __future__ import annotations

import pytest
import torch

from luwu.base import address_range
from luwu.base.address_range import PAGE_BYTES, AddressRange, Memory
from tests.own_memory import memory_bytes

COUNT, WEIGHT_BYTES, SMALL_BYTES = 40, 2 * 1024 * 1024, 20 * 1024


def bytes_of(found: AddressRange) -> torch.Tensor:
    return torch.frombuffer(found.view(), dtype=torch.uint8)


def mapped() -> set[str]:
    """Starts of what is mapped and may be written."""
    with open("/proc/self/maps", encoding="ascii") as file:
        return {line.split("-")[0] for line in file if line.split()[1].startswith("rw")}


def is_filled(found: AddressRange) -> bool:
    return f"{found.address:x}" in mapped()


@pytest.mark.parametrize("nbytes", [1, PAGE_BYTES, PAGE_BYTES + 1, WEIGHT_BYTES + 64])
def test_a_tensor_sees_what_lies_there_now(nbytes: int) -> None:
    """Goal: what was made once over the addresses reads what was written there since."""
    memory, found = Memory(), AddressRange(nbytes)
    tensor = bytes_of(found)
    saved = tensor[nbytes // 2 :]
    memory.fill(found)
    assert not tensor.any()
    tensor.fill_(9)
    memory.spare(found)
    memory.fill(found)
    tensor.fill_(7)
    assert saved.unique().tolist() == [7]
    found.empty()
    assert not is_filled(found)


def test_memory_moves_to_the_next_range() -> None:
    """Goal: a range is filled with a spare one's pages, which the kernel need not clear; what had
    them is empty, and may be filled again."""
    memory = Memory()
    first, second = AddressRange(WEIGHT_BYTES), AddressRange(WEIGHT_BYTES - 1)
    memory.fill(first)
    bytes_of(first).fill_(5)
    memory.spare(first)
    memory.fill(second)
    assert bytes_of(second).unique().tolist() == [5], "its pages, with anything in them"
    assert not is_filled(first)
    memory.fill(first)
    assert bytes_of(first).unique().tolist() == [0], "new ones"
    assert bytes_of(second).unique().tolist() == [5]


@pytest.mark.parametrize("pages", [1, 16, 17, 3000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_what_is_empty_reads_as_nan(pages: int, dtype: torch.dtype) -> None:
    """Goal: a parameter that was kept in the frames of an exception can be printed: it is NaN, from
    its first element to its last, and no memory of its own; filled again it has what lies there."""
    memory, first, second = Memory(), *(AddressRange(pages * PAGE_BYTES) for _ in range(2))
    tensor = torch.frombuffer(first.view(), dtype=dtype)
    memory.fill(first)
    tensor.fill_(5)
    memory.spare(first)
    memory.fill(second)
    assert tensor.isnan().all()
    assert "nan" in repr(tensor)
    memory.fill(first)
    assert tensor.unique().tolist() == [0]


def test_where_pages_cannot_be_moved_they_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an older kernel, or a limit of memory, costs time and nothing else."""

    def refuse(*given: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(address_range, "move_pages", refuse)
    memory, first, second = Memory(), AddressRange(WEIGHT_BYTES), AddressRange(WEIGHT_BYTES)
    memory.fill(first)
    bytes_of(first).fill_(5)
    memory.spare(first)
    memory.fill(second)
    assert not bytes_of(second).any()
    assert not is_filled(first)


def test_no_more_memory_than_was_in_use_at_once() -> None:
    """I5. Goal: spares of other lengths are given back before new memory is taken."""
    memory = Memory()
    small = [AddressRange(PAGE_BYTES) for _ in range(4)]
    large = AddressRange(3 * PAGE_BYTES)
    for found in small:
        memory.fill(found)
    for found in small:
        memory.spare(found)
    memory.fill(large)
    assert [is_filled(found) for found in small] == [False, False, False, True]
    assert is_filled(large)


def test_addresses_end_with_their_last_view() -> None:
    """I8. Goal: neither a range nor what was behind it is left when nobody can see it."""
    found = AddressRange(PAGE_BYTES)
    found.fill()
    name, view = f"{found.address:x}", found.view()
    del found
    view[0] = 1
    assert name in mapped()
    del view
    assert name not in mapped()


@pytest.mark.skipif(not memory_bytes("VmData"), reason="this kernel tells no VmData")
def test_units_that_came_and_went_leave_no_hole() -> None:
    """I5. Goal: memory does not grow with their number.
    Method: keep a small block after each, as a forward does."""
    memory = Memory()
    ranges = [AddressRange(WEIGHT_BYTES) for _ in range(COUNT)]
    before = memory_bytes("VmData")
    kept = []
    for found in ranges:
        memory.fill(found)
        kept.append(torch.empty(SMALL_BYTES, dtype=torch.uint8))
        memory.spare(found)
    assert memory_bytes("VmData") - before < 2 * WEIGHT_BYTES + COUNT * SMALL_BYTES
