"""The pages of an extent, and which part of what travels belongs to each.

Neighbouring pages whose records have one size form a *group*: they are read, updated and written at
once, as many as a thread has memory for.

A *segment* is the part of one parameter that lies in a chunk. A page counts the updates of each of
its segments: a parameter for which no rank has a gradient keeps its weights, its optimizer state
and its count, as in torch, although others in the page are updated. A state made by an older
version has one count per page. It is valid as long as all segments of the page are updated
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from luwu.base.dtypes import DTYPES
from luwu.base.errors import StateError
from luwu.layout import Layout, Segment, Share, segment_runs
from luwu.wire.hyper import StepHyper
from luwu.wire.stored import BLOCK_ELEMS
from switch_emu.node.kernels.interface import Run, UpdateKernel
from switch_emu.node.kernels.narrow import Draw, draw_key
from switch_emu.store import PageKind


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

    @property
    def count(self) -> int:
        """Number of pages."""
        return len(self.chunks)

    @property
    def segments_count(self) -> int:
        """Number of segments of all pages."""
        return sum(map(len, self.segments))

    @property
    def elems(self) -> int:
        """Elements of all pages."""
        return len(self.chunks) * self.page_elems

    def absent(self, bitmap: int) -> int:
        """The group's segments of a bitmap of the extent's."""
        return bitmap >> self.first_segment & (1 << self.segments_count) - 1

    def absent_by_page(self, bitmap: int) -> list[int]:
        """The segments of each page in a bitmap of the extent's."""
        found, left = [], self.absent(bitmap)
        for segments in self.segments:
            found.append(left & (1 << len(segments)) - 1)
            left >>= len(segments)
        return found

    def is_idle(self, bitmap: int) -> list[bool]:
        """True for each page all of whose segments are in a bitmap of the extent's."""
        by_page = zip(self.absent_by_page(bitmap), self.segments, strict=True)
        return [absent == (1 << len(segments)) - 1 for absent, segments in by_page]

    def part(self, data: memoryview, dtype: str) -> memoryview:
        """The group's values of a payload of the extent."""
        scale = DTYPES[dtype].nbytes
        return data[self.start * scale : (self.start + self.elems) * scale]

    def part_of(self, target: tuple[memoryview, str] | None) -> tuple[memoryview, str] | None:
        """The same of what weights are written to, where they are."""
        return None if target is None else (self.part(*target), target[1])


class Pages(NamedTuple):
    """Pages that are worked on together."""

    group: PageGroup
    kind: PageKind
    counts: UpdateCounts | None
    """Counts of updates; None for frozen pages, which are never updated."""
    segments: tuple[Segment, ...]
    kernel: UpdateKernel
    shape: tuple[int, ...] | None
    """Shape of the one parameter of a page that is updated as a whole; it may have more pages."""


def extent_pages(
    share: Share, extent: int, alike: Callable[[int], object] = int, pages_max: int = 1
) -> tuple[PageGroup, ...]:
    """The pages of an extent, in order, in groups of up to `pages_max` neighbours.

    `alike`: of a chunk; equal for those whose pages may be together.
    """
    layout = share.layout
    groups: list[list[int]] = []
    for index in layout.extents[extent].chunks:
        last = groups[-1] if groups else []
        if (
            0 < len(last) < pages_max
            and layout.chunks[index].elems == layout.chunks[last[0]].elems
            and share.page(index) == share.page(last[0]) + len(last)
            and alike(index) == alike(last[0])
        ):
            last.append(index)
        else:
            groups.append([index])
    found: list[PageGroup] = []
    start = first_segment = 0
    for chunks in groups:
        elems = layout.chunks[chunks[0]].elems
        segments = tuple(
            tuple(
                replace(each, chunk_start=each.chunk_start + place * elems)
                for each in layout.segments(index)
            )
            for place, index in enumerate(chunks)
        )
        group = PageGroup(
            chunks=tuple(chunks), number=share.page(chunks[0]), start=start, page_elems=elems,
            first_segment=first_segment, segments=segments,
        )  # fmt: skip
        found.append(group)
        start, first_segment = start + group.elems, first_segment + group.segments_count
    return tuple(found)


def update_runs(
    layout: Layout, segments: Sequence[Segment], hyper: StepHyper, counts: Sequence[int],
    absent: int, version: int | None = None,
) -> list[Run]:  # fmt: skip
    """The runs of one update of neighbouring pages.

    `segments`: those of all pages, each where it lies in them. `counts`: the updates of each so
    far. `absent`: bitmap of the segments without a gradient. `version`: that is made, where
    something is stored in fewer bits than float32: then a run is of one parameter, and has a draw.
    """
    labels: list[tuple[int, int, int, int] | None] = []
    for index, segment in enumerate(segments):
        of = (-1, 0)
        if version is not None:
            # Where the parameter would begin: alike in neighbours that are one piece of it.
            of = segment.parameter, segment.chunk_start - segment.parameter_start
        alike = layout.parameters[segment.parameter].group, counts[index], *of
        labels.append(None if absent >> index & 1 else alike)
    found = []
    for start, stop, each in segment_runs(segments, labels):
        if each is None:
            found.append(Run(start=start, stop=stop, hyper=None))
            continue
        group, count, parameter, origin = each
        draw = None
        if version is not None:
            draw = Draw(draw_key(version, parameter), (start - origin) // BLOCK_ELEMS)
        found.append(
            Run(start=start, stop=stop, hyper=hyper.groups[group], updates_count=count, draw=draw)
        )
    return found


class UpdateCounts:
    """Counts of updates of a group of pages, as the pages store them.

    Shapes: int64 [P, W], a row for each page; W is what fits into the record's last part, of which
    a page uses one for each segment, or one for all.
    """

    def __init__(
        self, layout: Layout, group: PageGroup, stored: Sequence[int], width: int
    ) -> None:  # fmt: skip
        """`stored`: counts that each page has."""
        self._layout, self._group = layout, group
        self._stored = stored
        self._is_of_segments = all(
            count == len(segments) for count, segments in zip(stored, group.segments, strict=True)
        )
        self._used = np.arange(width) < np.array(stored)[:, None]
        self._all = self._used.astype(np.int64)

    def by_segment(self, counts: np.ndarray, absent: int) -> list[int]:
        """The count of each segment of the group.

        Raises StateError if only some segments of a page are updated, which has one count for all.
        """
        if self._is_of_segments:
            found: list[int] = counts[self._used].tolist()
            return found
        if absent:
            self._check_whole(absent)
        return [
            int(row[index % stored])
            for row, stored, segments in zip(
                counts, self._stored, self._group.segments, strict=True
            )
            for index in range(len(segments))
        ]  # fmt: skip

    def count(self, counts: np.ndarray, absent: int, into: np.ndarray) -> None:
        """Write the counts after an update; `into` may be `counts` itself."""
        present = self._all
        if absent:
            present = self._all.copy()
            bits = [1 - (absent >> bit & 1) for bit in range(self._group.segments_count)]
            present[self._used] = bits if self._is_of_segments else 1
        np.add(counts, present, out=into)

    def _check_whole(self, absent: int) -> None:
        first = 0
        for chunk, stored, segments in zip(
            self._group.chunks, self._stored, self._group.segments, strict=True
        ):
            names = [
                self._layout.parameters[segment.parameter].name
                for index, segment in enumerate(segments, first)
                if absent >> index & 1
            ]
            first += len(segments)
            if names and stored < len(segments):
                raise StateError(
                    f"page of chunk {chunk}: {', '.join(names[:4])} had no gradient in this step, "
                    "others in the page had one, but this state was made by a version of LuWu that "
                    "counts the updates of a page as a whole. The step was discarded. Make a new "
                    "state of it with luwu export and luwu import, and continue with that"
                )
