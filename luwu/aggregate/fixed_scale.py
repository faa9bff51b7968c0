"""Fixed scale: int32 at a scale given beforehand; a chunk that does not fit is sent again as float.

    encoded     int32 [C]: x * scale, rounded to the nearest even
    limit       INT32_MAX // N, N the world size: N numbers within it never overflow
    marker      INT32_MIN stands for a number beyond the limit, or one that is not finite; whatever
                it is combined with becomes the marker too, so that no tree can lose it

Nothing is asked first: values travel at once. The node looks for the marker in the complete sum;
where it finds one, every rank sends its gradient of the chunk again as it was, singly; these are
added at the node in rank order, and nothing of the integers is used. So the bits do not depend on
the tree, but, where chunks are sent again, on how large they are.

Error bound, for each element, over N ranks: every contribution is rounded once, by at most half a
step, and the sum once more to float32:

    |decoded - exact|  <=  N / (2 * scale) * (1 + 2**-29)  +  2**-24 * |exact| (1 + tiny) + 2**-150

It is absolute: it does not shrink with the gradient. Elements up to INT32_MAX / (N * scale) in size
fit: with the default scale of 2**24, 64 for two ranks and 16 for eight. A loss scale multiplies the
gradients, so it asks for a scale as much smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from luwu.aggregate.interface import Aggregator, Encoded, F32Array, check_sizes
from luwu.base.errors import ConfigError

MARKER: Final = -(2**31)
SCALE: Final = float(2**24)
"""Unless another is given."""
_STRIP_ELEMS: Final = 32 * 1024


class FixedScale(Aggregator):
    """See the module."""

    name: ClassVar[str] = "fixed-scale"
    is_order_free: ClassVar[bool] = True
    may_overflow: ClassVar[bool] = True

    def __init__(self, world_size: int, scale: float = SCALE) -> None:
        """Raises ConfigError unless the scale is finite and above 0."""
        super().__init__(world_size)
        if not (math.isfinite(scale) and scale > 0 and math.isfinite(1 / scale)):
            raise ConfigError(f"aggregate_scale: {scale!r} is not a finite number above 0")
        self.scale = scale
        self.limit = (2**31 - 1) // world_size

    @property
    def spec(self) -> str:
        return f"{self.name}:{self.scale!r}"

    def encoded_bytes(self, elems: int) -> int:
        return 4 * elems

    def encode(self, values: F32Array, agreed: bytes, out: memoryview) -> int:
        numbers = np.frombuffer(out, np.int32, values.size)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, values.size, _STRIP_ELEMS):
                strip = slice(start, start + _STRIP_ELEMS)
                scaled = values[strip].astype(np.float64)
                scaled *= self.scale
                np.rint(scaled, out=scaled)
                scaled[~(np.abs(scaled) <= self.limit)] = MARKER  # NaN is not within it either
                np.copyto(numbers[strip], scaled, casting="unsafe")
        return values.nbytes

    def combine(self, parts: Sequence[Encoded], out: memoryview) -> int:
        check_sizes(self.name, [len(part) for part in parts], len(parts[0]))
        total = np.frombuffer(out, np.int32, len(parts[0]) // 4)
        np.copyto(total, np.frombuffer(parts[0], np.int32))
        for part in parts[1:]:
            numbers = np.frombuffer(part, np.int32)
            is_marked = (total == MARKER) | (numbers == MARKER)
            total += numbers
            total[is_marked] = MARKER
        return total.nbytes

    def decode(self, encoded: Encoded, out: F32Array) -> None:
        check_sizes(self.name, [len(encoded)], out.nbytes)
        numbers = np.frombuffer(encoded, np.int32)
        with np.errstate(over="ignore"):
            for start in range(0, out.size, _STRIP_ELEMS):
                strip = slice(start, start + _STRIP_ELEMS)
                np.copyto(out[strip], numbers[strip] / self.scale, casting="same_kind")
                out[strip][numbers[strip] == MARKER] = np.nan

    def overflowed(self, parts: Sequence[Encoded]) -> bool:
        return any(np.frombuffer(part, np.int32).min() == MARKER for part in parts)

    def error_bound(self, sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The bound of the module, for each element of exact sums."""
        quantised = self.world_size / (2 * self.scale) * (1 + 2.0**-29)
        bound: npt.NDArray[np.float64] = (
            quantised + (np.abs(sums) + quantised) * 2.0**-24 + 2.0**-150
        )
        return bound
