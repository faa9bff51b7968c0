"""Statistics of a chunk that a node sends in a measured step: sums of squares per segment.

    a chunk      divisor, then its segments in the order of `Layout.segments`
    a segment    gradient, weights, update: a sum of squares each, and what it was rounded by

All are float64, little endian. Squares are those of the undivided sum of gradients: the norm of the
mean is their root over the divisor. A sum is that of fixed blocks of 4,096 elements, as for the
global norm, and comes with the rest that its rounding took off. Added exactly, sums and rests give
the norm of a parameter, however it was cut into chunks (but for a rest of the rest, of 2 ** -106).

A divisor of zero: no rank had a gradient for the chunk, so the step did not touch it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from luwu.base.errors import RemoteProtocolError

STATS: Final = "stats"
"""The field name by which a reader asks for statistics, as for a field of a page."""

SEGMENT_NUMBERS: Final = 6


class Rounded(NamedTuple):
    """A sum, and what is missing to the exact one."""

    sum: float
    rest: float


class SegmentSquares(NamedTuple):
    """Statistics of one segment."""

    grad: Rounded
    """Square of the sum over all ranks, not divided, before clipping."""
    weight: Rounded
    """Square of the weights after the update."""
    update: Rounded
    """Square of the difference of new and old weights, in float32."""


class ChunkStats(NamedTuple):
    """Statistics of one chunk."""

    divisor: float
    """Total weight of the sum; 0: the step did not touch the chunk."""
    segments: tuple[SegmentSquares, ...]


def summed(squares: Sequence[float]) -> Rounded:
    """Their exact sum, in two numbers."""
    total = math.fsum(squares)
    return Rounded(total, math.fsum([*squares, -total]) if math.isfinite(total) else 0.0)


def norm(sums: Iterable[Rounded]) -> float:
    """The root of all of them together."""
    return math.sqrt(math.fsum(number for pair in sums for number in pair))


def stats_bytes(segments_count: int) -> int:
    """Bytes of a chunk's statistics."""
    return 8 * (1 + SEGMENT_NUMBERS * segments_count)


def encode_stats(stats: ChunkStats) -> bytes:
    """See the module."""
    numbers = [number for segment in stats.segments for pair in segment for number in pair]
    return struct.pack(f"<{1 + len(numbers)}d", stats.divisor, *numbers)


def decode_stats(encoded: bytes, segments_count: int) -> ChunkStats:
    """The statistics that a node sent. Raises RemoteProtocolError if they are malformed."""
    if len(encoded) != stats_bytes(segments_count):
        raise RemoteProtocolError(
            f"statistics of a chunk of {segments_count} segments have {len(encoded)} bytes"
        )
    divisor, *numbers = struct.unpack(f"<{1 + SEGMENT_NUMBERS * segments_count}d", encoded)
    if not divisor >= 0 or any(number < 0 for number in numbers[::2]):
        raise RemoteProtocolError("statistics of a chunk have a divisor or squares below zero")
    pairs = [Rounded(*numbers[i : i + 2]) for i in range(0, len(numbers), 2)]
    segments = tuple(SegmentSquares(*pairs[i : i + 3]) for i in range(0, len(pairs), 3))
    return ChunkStats(divisor, segments)
