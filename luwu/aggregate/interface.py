"""The interface of an aggregator: three functions, and what they promise.

    child   measure   what must be known of a chunk before it is encoded, if anything (`asks_first`)
    switch  fold      the statements of several children about one chunk become one
    child   encode    float32 values -> what travels
    slot    combine   N encoded -> one encoded, wherever they meet: in a switch, or at the node
    node    decode    one encoded -> the float32 sum over all ranks

An aggregator is made for a world size and keeps nothing: the same arguments give the same bytes, in
any thread. What travels says how it is decoded. Contributions are combined in rank order,
and in a tree as its switches would: the sum depends on the tree, as float32 does, unless `combine`
is commutative and associative bit by bit.

Elements: a chunk has a multiple of 64. Blocks are counted from its start; chunks hold multiples of
4,096 elements but for a region's last, so blocks of up to 4,096 do not depend on `--chunk`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

F32Array = npt.NDArray[np.float32]
Encoded = memoryview | bytes

ENCODED: Final = "encoded"
"""The dtype of payloads that the job's aggregator encoded."""


class Aggregator(ABC):
    """See the module. One of another package derives from this (docs/aggregators.md)."""

    name: ClassVar[str]
    """The name from which `make_aggregator` makes it; all ranks must have the same."""
    is_plain: ClassVar[bool] = False
    """True if gradients travel in their own dtype, without encoding."""
    asks_first: ClassVar[bool] = False
    """Children state `measure` of a chunk and wait for what all agreed on before they encode."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    @abstractmethod
    def encoded_bytes(self, elems: int) -> int:
        """The most bytes that a chunk of so many elements takes encoded."""

    def sum_bytes(self, elems: int) -> int:
        """The most bytes that several of such chunks take combined."""
        return self.encoded_bytes(elems)

    def combined_bytes(self, parts: Sequence[Encoded]) -> int:
        """The most bytes that these take combined."""
        return max(len(part) for part in parts)

    def fits(self, elems: int, nbytes: int) -> bool:
        """True if a contribution, or several combined, to such a chunk may have this size."""
        return nbytes == self.encoded_bytes(elems)

    def statement_bytes(self, elems: int) -> int:
        """Bytes of what `measure` gives; 0 if nothing is asked first."""
        return 0

    def measure(self, values: F32Array) -> bytes:
        """The statement about a chunk that others need before any of them encodes it."""
        raise NotImplementedError(f"{self.name} asks nothing first")

    def fold(self, statements: Sequence[bytes]) -> bytes:
        """Several statements about one chunk as one, in any order. Raises ValueError."""
        raise NotImplementedError(f"{self.name} asks nothing first")

    @abstractmethod
    def encode(self, values: F32Array, agreed: bytes, out: memoryview) -> int:
        """Write what travels to `out`; the bytes it took. Raises ValueError.

        Shapes: float32 [C], not modified; `out` has `encoded_bytes(C)`, aligned for int32.
        `agreed` is the fold of what all ranks stated, empty if nothing is asked first.
        """

    @abstractmethod
    def combine(self, parts: Sequence[Encoded], out: memoryview) -> int:
        """Write several encoded, in rank order, to `out` as one; the bytes it took.

        `out` has `combined_bytes` and is none of `parts`. Raises ValueError if they do not fit.
        """

    @abstractmethod
    def decode(self, encoded: Encoded, out: F32Array) -> None:
        """Write the float32 sum of a chunk to `out`, float32 [C]. Raises ValueError.

        Values that cannot be had come out as NaN, so that the step is skipped.
        """


def check_sizes(name: str, found: Sequence[int], expected: int) -> None:
    """Raises ValueError unless all sizes are as expected."""
    for size in found:
        if size != expected:
            raise ValueError(f"{name}: {size} bytes, expected {expected}")
