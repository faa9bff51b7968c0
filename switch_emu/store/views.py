"""Byte views of memory: of callers' buffers, checked, and of records in RAM."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from luwu.base.address import address_of
from luwu.base.errors import StateError
from switch_emu.store.records import Buffer


def read_view(record: Buffer, size: int, what: str) -> memoryview:
    """A flat view of exactly `size` bytes. Raises StateError for another size."""
    view = memoryview(record).cast("B")
    if len(view) != size:
        raise StateError(f"{what}: the buffer has {len(view)} bytes, expected {size}")
    return view


def write_view(into: memoryview, size: int, what: str) -> memoryview:
    """A flat writable view of exactly `size` bytes. Raises StateError otherwise."""
    view = read_view(into, size, what)
    if view.readonly:
        raise StateError(f"{what}: the buffer to read into is read-only; give a writable one")
    return view


def cut(sizes: Sequence[int]) -> list[memoryview]:
    """Zeroed memory of these sizes, in one mapping, each on a multiple of 64 bytes.

    Sizes are multiples of 64. Memory is allocated when first written, in huge pages if the system
    has them, since every step reads all of it.
    """
    mapping = mmap.mmap(-1, max(sum(sizes), 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = memoryview(mapping)
    views, start = [], 0
    for size in sizes:
        views.append(whole[start : start + size])
        start += size
    return views


def is_same_memory(one: memoryview, other: memoryview) -> bool:
    """True if two views of equal size are of the same bytes."""
    return address_of(one) == address_of(other)
