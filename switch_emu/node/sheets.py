"""A matrix over several pages, in one piece while it is updated.

Its gradient, weights and state are gathered; the kernel sees what would be the page of a chunk as
large as the matrix, and so has the bits of that page; the pages are made of the result. All of it
is in memory meanwhile: the plan has room for one at a time (`plan.whole_bytes`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from luwu.aggregate.interface import F32Array
from luwu.layout import Layout, Segment
from luwu.wire.hyper import StepHyper
from luwu.wire.stored import BLOCK_ELEMS
from switch_emu.node.core.actions import Update
from switch_emu.node.extent_pages import Pages, update_runs
from switch_emu.node.kernels import Arrays, UpdateCall
from switch_emu.node.kernels.narrow import widen


class Matrix:
    """The content of the pages of a sheet. Each of them is a group of its own."""

    def __init__(self, layout: Layout, pages: Sequence[Pages]) -> None:
        self._layout, self._pages = layout, pages
        ends = [*accumulate(each.group.elems for each in pages)]
        self._parts = {
            each.group.number: slice(end - each.group.elems, end)
            for each, end in zip(pages, ends, strict=True)
        }
        """The elements of each page, by its number."""
        self._total = np.empty(ends[-1], np.float32)
        self._arrays: Arrays | None = None
        self._counts: dict[int, np.ndarray] = {}
        """Counts of updates that pages have, by their numbers."""

    @property
    def elems(self) -> int:
        """Elements of all pages."""
        return self._total.size

    def total(self, pages: Pages) -> F32Array:
        """The gradient of some pages: to be filled."""
        return self._total[self._parts[pages.group.number]]

    def take(self, pages: Pages, stored: Arrays, counts: np.ndarray) -> None:
        """Copy what is stored in some pages."""
        if self._arrays is None:
            self._arrays = _empty(stored, self._total.size)
        _copy(_first(stored), self._part(pages))
        self._counts[pages.group.number] = counts.copy()

    def put(self, pages: Pages, stored: Arrays, counts: np.ndarray, absent: int) -> None:
        """Write what some pages are to store; `absent`: bitmap of their segments."""
        _copy(self._part(pages), _first(stored))
        assert pages.counts is not None
        pages.counts.count(self._counts[pages.group.number], absent, counts)

    def weights(self, pages: Pages, room: F32Array) -> F32Array:
        """The weights of some pages; `room`: for those that are not stored in float32."""
        weights = self._part(pages).weights
        if weights.dtype == np.float32:
            return weights
        widen(weights, None, room)
        return room

    def update(self, action: Update, hyper: StepHyper, scale: float) -> None:
        """Update all pages, which were all taken, by `total`; see `UpdateCall`."""
        first, arrays = self._pages[0], self._arrays
        assert arrays is not None
        assert first.counts is not None
        assert first.shape is not None
        absent = first.group.absent(action.absent)
        whole = Segment(
            parameter=first.segments[0].parameter, parameter_start=0, chunk_start=0,
            elems=math.prod(first.shape), padded_elems=self._total.size,
        )  # fmt: skip
        counts = first.counts.by_segment(self._counts[first.group.number], absent)
        version = action.step + 1 if arrays.is_narrow else None
        first.kernel.update(
            UpdateCall(
                contributions=[(self._total.view(np.uint8).data, "float32")],
                old=arrays,
                new=arrays,
                runs=update_runs(self._layout, (whole,), hyper, counts, absent, version),
                divisor=action.divisor,
                scale=scale,
                wire=None,
                measure=False,
                shape=first.shape,
            )
        )

    def _part(self, pages: Pages) -> Arrays:
        assert self._arrays is not None
        elems = self._parts[pages.group.number]
        weights, state, scales = self._arrays
        blocks = slice(elems.start // BLOCK_ELEMS, elems.stop // BLOCK_ELEMS)
        return Arrays(
            weights[elems],
            tuple(array[elems] for array in state),
            tuple(None if each is None else each[blocks] for each in scales),
        )


def _empty(like: Arrays, elems: int) -> Arrays:
    return Arrays(
        np.empty(elems, like.weights.dtype),
        tuple(np.empty(elems, array.dtype) for array in like.state),
        tuple(
            None if each is None else np.empty(elems // BLOCK_ELEMS, np.float32)
            for each in like.scales
        ),
    )


def _first(arrays: Arrays) -> Arrays:
    """Arrays of the first page, which is the only one."""
    weights, state, scales = arrays
    return Arrays(
        weights[0],
        tuple(array[0] for array in state),
        tuple(None if each is None else each[0] for each in scales),
    )


def _copy(source: Arrays, into: Arrays) -> None:
    for (values, scales), (out, scales_out) in zip(source.pairs, into.pairs, strict=True):
        out[:] = values
        if scales is not None and scales_out is not None:
            scales_out[:] = scales
