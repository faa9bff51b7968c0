"""The pages of an extent, and which part of what travels belongs to each.

Neighbouring pages whose records have one size form a *group*: they are read, updated and written at
once, as many as a thread has memory for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from luwu.base.dtypes import DTYPES
from luwu.layout import Segment, Share


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Neighbouring pages of an extent, of one size; often a single one."""

    chunks: tuple[int, ...]
    number: int
    """Number of the first page, in the store of its node; the others follow."""
    start: int
    """First element, counted from the extent's start."""
    page_elems: int
    first_segment: int
    """Bit of the first segment in a bitmap of the extent's."""
    segments: tuple[tuple[Segment, ...], ...]
    """Segments of each page, at their places in the group."""
    segments_count: int

    @property
    def count(self) -> int:
        """Number of pages."""
        return len(self.chunks)

    @property
    def elems(self) -> int:
        """Elements of all pages."""
        return len(self.chunks) * self.page_elems

    def absent(self, bitmap: int) -> int:
        """The group's segments of a bitmap of the extent's."""
        return bitmap >> self.first_segment & (1 << self.segments_count) - 1

    def part(self, data: memoryview, dtype: str) -> memoryview:
        """The group's values of a payload of the extent."""
        scale = DTYPES[dtype].nbytes
        return data[self.start * scale : (self.start + self.elems) * scale]

    def part_of(self, target: tuple[memoryview, str] | None) -> tuple[memoryview, str] | None:
        """The same of what weights are written to, where they are."""
        return None if target is None else (self.part(*target), target[1])


def extent_pages(share: Share, extent: int) -> tuple[PageGroup, ...]:
    """The pages of an extent, in order, each a group of its own."""
    found: list[PageGroup] = []
    layout = share.layout
    start = first_segment = 0
    for index in layout.extents[extent].chunks:
        segments = tuple(layout.segments(index))
        found.append(
            PageGroup(
                chunks=(index,),
                number=share.page(index),
                start=start,
                page_elems=layout.chunks[index].elems,
                first_segment=first_segment,
                segments=(segments,),
                segments_count=len(segments),
            )
        )
        start, first_segment = start + found[-1].elems, first_segment + len(segments)
    return tuple(found)


def grouped(
    pages: Iterable[PageGroup], alike: Callable[[PageGroup], object], pages_max: int
) -> tuple[PageGroup, ...]:
    """Neighbours as groups of up to `pages_max`; `alike`: equal for pages that may be together."""
    found: list[PageGroup] = []
    for page in pages:
        last = found[-1] if found else None
        if (
            last is not None
            and last.count < pages_max
            and page.page_elems == last.page_elems
            and page.number == last.number + last.count
            and alike(page) == alike(last)
        ):
            found[-1] = _joined(last, page)
        else:
            found.append(page)
    return tuple(found)


def _joined(group: PageGroup, page: PageGroup) -> PageGroup:
    """A group, and the page behind it."""
    moved = [_moved(segments, group.elems) for segments in page.segments]
    return replace(
        group,
        chunks=group.chunks + page.chunks,
        segments=(*group.segments, *moved),
        segments_count=group.segments_count + page.segments_count,
    )


def _moved(segments: Sequence[Segment], elems: int) -> tuple[Segment, ...]:
    return tuple(replace(each, chunk_start=each.chunk_start + elems) for each in segments)
