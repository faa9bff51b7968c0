"""Byte views of callers' buffers, with their size checked once."""

from __future__ import annotations

from luwu.base.errors import StateError
from switch_emu.store.interface import Buffer


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
