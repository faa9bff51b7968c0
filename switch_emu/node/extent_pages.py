"""The pages of an extent, and which part of what travels belongs to each."""

from __future__ import annotations

from dataclasses import dataclass

from luwu.layout import DTYPE_BYTES, Layout


@dataclass(frozen=True, slots=True)
class ExtentPage:
    """One page of an extent."""

    chunk: int
    number: int
    """Of the page, in the store of its node."""
    start: int
    """First element, counted from the extent's start."""
    elems: int
    first_segment: int
    """Bit of its first segment in a bitmap of the extent's."""
    segments_count: int

    def absent(self, bitmap: int) -> int:
        """The page's segments of a bitmap of the extent's."""
        return bitmap >> self.first_segment & (1 << self.segments_count) - 1

    def part(self, data: memoryview, dtype: str) -> memoryview:
        """The page's values of a payload of the extent."""
        scale = DTYPE_BYTES[dtype]
        return data[self.start * scale : (self.start + self.elems) * scale]

    def part_of(self, target: tuple[memoryview, str] | None) -> tuple[memoryview, str] | None:
        """The same of what weights are written to, where they are."""
        return None if target is None else (self.part(*target), target[1])


def extent_pages(layout: Layout, extent: int) -> tuple[ExtentPage, ...]:
    """The pages of an extent, in order."""
    found: list[ExtentPage] = []
    start = segment = 0
    for index in layout.extents[extent].chunks:
        elems, count = layout.chunks[index].elems, layout.segments_count(index)
        found.append(ExtentPage(index, layout.page(index), start, elems, segment, count))
        start, segment = start + elems, segment + count
    return tuple(found)
