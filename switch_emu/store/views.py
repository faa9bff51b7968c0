"""Byte views of memory: of callers' buffers, checked, and of records in RAM."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from luwu.base.errors import StateError
from switch_emu.store.config import StoreConfig
from switch_emu.store.records import Buffer


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Records of neighbouring pages, of one size and at equal distances in memory.

    Where weights lie apart, a record is what follows its first field.
    """

    memory: memoryview
    """Memory from the first byte of the first record to the last byte of the last one."""
    count: int
    record_bytes: int
    stride: int
    """Bytes from the start of a record to the start of the next one."""
    weights: memoryview | None = None
    """The first fields of all these records, one behind the other, if they lie apart."""

    def records(self) -> list[memoryview]:
        """The records, one by one."""
        memory, size = self.memory, self.record_bytes
        return [memory[start : start + size] for start in range(0, len(memory), self.stride)]

    def part(self, start: int, stop: int) -> RecordRows:
        """Records `start` to `stop` of these."""
        first, end = start * self.stride, (stop - 1) * self.stride + self.record_bytes
        return replace(self, memory=self.memory[first:end], count=stop - start)

    def readonly(self) -> RecordRows:
        """The same, not to be written."""
        weights = None if self.weights is None else self.weights.toreadonly()
        return replace(self, memory=self.memory.toreadonly(), weights=weights)


def one_record(record: Buffer) -> RecordRows:
    """A single record."""
    view = memoryview(record).cast("B")
    return RecordRows(view, 1, len(view), len(view))


class RecordMemory:
    """Zeroed memory for the records of some pages, in one mapping, in the order of the pages.

    Sizes are multiples of 64, and so is where each starts. Memory is allocated when first written,
    in huge pages if the system has them, since every step reads all of it.
    """

    def __init__(self, sizes: Mapping[int, int]) -> None:
        """`sizes`: bytes of each page's record, by page."""
        total = sum(sizes.values())
        mapping = mmap.mmap(-1, max(total, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(mmap.MADV_HUGEPAGE)
        self._whole = memoryview(mapping)
        self._starts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        self._sizes = dict(sizes)

    def record(self, page: int) -> memoryview:
        """The record of a page."""
        start = self._starts[page]
        return self._whole[start : start + self._sizes[page]]

    def rows(self, first: int, count: int) -> RecordRows | None:
        """The records of so many pages from `first` on; None unless all are here, of one size."""
        sizes = self._sizes
        size = sizes.get(first, 0)
        for page in range(first, first + count):
            if sizes.get(page) != size:
                return None
        start = self._starts[first]
        return RecordRows(self._whole[start : start + count * size], count, size, size)


def write_view(into: memoryview, size: int, what: str) -> memoryview:
    """A flat writable view of exactly `size` bytes. Raises StateError otherwise."""
    view = into.cast("B")
    if len(view) != size:
        raise StateError(f"{what}: the buffer has {len(view)} bytes, expected {size}")
    if view.readonly:
        raise StateError(f"{what}: the buffer to read into is read-only; give a writable one")
    return view


def check_rows(
    config: StoreConfig, first: int, rows: RecordRows, *, to_fill: bool = False
) -> None:  # fmt: skip
    """Raises StateError unless these can be the records of the pages from `first` on.

    `to_fill`: and can be written.
    """
    size, count = rows.record_bytes, rows.count
    sizes = config.record_bytes[first : first + count] if first >= 0 else ()
    if sizes.count(size) != count:
        raise StateError(
            f"pages {first} to {first + count - 1}: {count} records of {size} bytes were given; "
            f"this store has {config.page_count} pages, and of these {len(sizes)}, with records of "
            f"{', '.join(map(str, sorted(set(sizes)))) or 'no'} bytes"
        )
    expected_bytes = (count - 1) * rows.stride + size
    if rows.stride < size or len(rows.memory) != expected_bytes:
        raise StateError(
            f"page {first}: {count} records of {size} bytes, {rows.stride} apart, take "
            f"{expected_bytes} bytes; the buffer has {len(rows.memory)}"
        )
    if to_fill and rows.memory.readonly:
        raise StateError(f"page {first}: the buffer to read into is read-only; give a writable one")
