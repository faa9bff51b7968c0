"""Norms of gradient, weights and update per parameter, computed in the update of a page.

    a step with `measure`       each update adds the squares of its pieces: `add`
    decided, and applied        the sums of its attempt become `latest`
    aborted or skipped          they are dropped; `latest` is unchanged

A *piece* is the intersection of a segment and a block of 4,096 elements: the blocks are those of
the global norm, counted from the start of the unit's region, so they do not depend on chunks. They
take 56 bytes per segment in each of `latest`, the step under way and the versions of readers. They
are not stored: a restarted node has none.

`add` is called by pipeline threads, `decided` by one of them, `latest` by any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from luwu.aggregate.interface import F32Array
from luwu.base.limits import NORM_BLOCK_ELEMS
from luwu.layout import Layout, Segment
from luwu.wire.statistics import ChunkStats, SegmentSquares, encode_stats, stats_bytes, summed
from switch_emu.node.core.actions import Update
from switch_emu.node.extent_pages import PageGroup
from switch_emu.node.kernels import Pieces


@dataclass(frozen=True, slots=True)
class Measured:
    """Statistics of one step."""

    step: int
    attempt: int
    chunks: dict[int, bytes] = field(default_factory=dict)
    """Encoded statistics, without chunks that the step did not touch."""


class Statistics:
    """Statistics of the latest measured step and of the one under way; thread-safe."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._lock = Lock()
        self._under_way: Measured | None = None
        self.latest: Measured | None = None
        """Statistics of the last decided step that was measured; None: none since the start."""

    @staticmethod
    def pieces(group: PageGroup) -> Pieces:
        """The pieces that an update of these pages measures."""
        segments = (segment for page in group.segments for segment in page)
        return Pieces.of([border for segment in segments for border in _borders(segment)])

    def add(self, update: Update, group: PageGroup, pieces: Pieces) -> None:
        """The pages were updated, and measured."""
        grad, weights, change = pieces.squares.tolist()
        first, encoded = 0, {}
        for chunk, segments in zip(group.chunks, group.segments, strict=True):
            found = []
            for segment in segments:
                part = slice(first, first + len([*_borders(segment)]))
                first = part.stop
                found.append(
                    SegmentSquares(summed(grad[part]), summed(weights[part]), summed(change[part]))
                )
            encoded[chunk] = encode_stats(ChunkStats(update.divisor, tuple(found)))
        with self._lock:
            held = self._under_way
            if held is None or (held.attempt, held.step) < (update.attempt, update.step):
                held = self._under_way = Measured(update.step, update.attempt)
            if (held.attempt, held.step) == (update.attempt, update.step):
                held.chunks.update(encoded)  # else of an attempt that was given up

    def decided(self, step: int, attempt: int) -> None:
        """Note a decided step, made under this attempt."""
        with self._lock:
            held, self._under_way = self._under_way, None
            if held is not None and (held.step, held.attempt) == (step, attempt):
                self.latest = held

    def of_chunk(self, measured: Measured, chunk: int) -> bytes:
        """Encoded statistics of a chunk: zeros if the step did not touch it."""
        untouched = bytes(stats_bytes(self._layout.segments_count(chunk)))
        return measured.chunks.get(chunk, untouched)


def _borders(segment: Segment) -> Iterator[tuple[int, int]]:
    """Start and stop of each piece of a segment, in elements of its group of pages."""
    start, end = segment.chunk_start, segment.chunk_start + segment.elems
    while start < end:
        stop = min(end, (start // NORM_BLOCK_ELEMS + 1) * NORM_BLOCK_ELEMS)
        yield start, stop
        start = stop


_REDUCE: dict[float, Callable[..., Any]] = {1.0: np.add.reduceat, np.inf: np.maximum.reduceat}


def block_norms(total: F32Array, norm_type: float) -> tuple[float, ...]:
    """The sum of magnitudes (`norm_type` 1) or the largest one (infinity) of each block of a sum.

    Shapes: float32 [C] -> one float64 for every 4,096 elements; NaN where a block has one.
    The kernels compute the squares of the 2-norm as they add. Clipping by another norm is rare, so
    it takes another pass over the sum, here.
    """
    starts = np.arange(0, total.size, NORM_BLOCK_ELEMS)
    found = _REDUCE[norm_type](np.abs(total), starts, dtype=np.float64)
    return tuple(found.tolist())
