"""Shared exponent: int32 below the largest exponent that any rank has in the block.

SwitchML's way (Sapio et al., NSDI 2021, section 3.7): a switch adds integers only, so all ranks
must scale alike, and nothing may overflow. A block is 256 elements. Each rank states the exponent
of its largest magnitude; the largest of all ranks' is what all scale by.

    statement   one byte a block: the exponent field of the largest |x|, as float32 stores it;
                0: all are zero or denormal; 255: one is infinite or NaN
    scale       with exponent e, |x| < 2**(e - 126), and 2**w >= world size: x * 2**(156 - w - e),
                rounded to the nearest even, is at most 2**(30 - w) in size, so N of them fit
    encoded     int32 [C], then the agreed exponents: it is decoded without anything else
    255         the block is sent as zeros and decoded as NaN: the step is skipped, as in float32

Error bound, for each element, over N ranks (`error_bound`): every contribution is rounded once, by
at most half a step, and the sum is rounded once more to float32:

    |decoded - exact|  <=  N * 2**(w - 31) * 2**(e - 126)  +  2**-24 * |exact| (1 + tiny) + 2**-150

As 2**(e - 126) <= 2 * (the block's largest magnitude over all ranks), the first term is at most
N * 2**(w - 30) of that magnitude: 2**-28 with two ranks, 2**-24 with eight, 2**-10 with 1,024.

Integers add in any order, and a block whose exponents differ (a peer that did not keep to what was
agreed) becomes 255: the sum is the same in every tree and at any number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from luwu.aggregate.interface import Aggregator, Encoded, F32Array, check_sizes

BLOCK_ELEMS: Final = 256
NOT_FINITE: Final = 255
_STRIP_BLOCKS: Final = 128
"""Worked on at a time: float64 copies of so many stay in the second-level cache."""

_U8 = npt.NDArray[np.uint8]
_F64 = npt.NDArray[np.float64]


class SharedExponent(Aggregator):
    """See the module."""

    name: ClassVar[str] = "shared-exponent"
    asks_first: ClassVar[bool] = True

    def __init__(self, world_size: int) -> None:
        super().__init__(world_size)
        self._spare_bits = (world_size - 1).bit_length()
        shifts = 156 - self._spare_bits - np.arange(NOT_FINITE + 1)
        self._scales = np.ldexp(1.0, shifts)
        self._steps = np.ldexp(1.0, -shifts)
        self._scales[NOT_FINITE], self._steps[NOT_FINITE] = 0.0, np.nan

    def encoded_bytes(self, elems: int) -> int:
        return 4 * elems + _blocks_count(elems)

    def statement_bytes(self, elems: int) -> int:
        return _blocks_count(elems)

    def measure(self, values: F32Array) -> bytes:
        exponents = np.empty(_blocks_count(values.size), np.uint8)
        for blocks, at in _strips(values.view(np.uint32)):
            exponents[at] = (blocks & 0x7FFFFFFF).max(axis=1) >> 23
        return exponents.tobytes()

    def fold(self, statements: Sequence[bytes]) -> bytes:
        check_sizes("exponents of a chunk", [len(each) for each in statements], len(statements[0]))
        largest = np.frombuffer(statements[0], np.uint8).copy()
        for each in statements[1:]:
            np.maximum(largest, np.frombuffer(each, np.uint8), out=largest)
        return largest.tobytes()

    def encode(self, values: F32Array, agreed: bytes, out: memoryview) -> int:
        check_sizes("agreed exponents", [len(agreed)], _blocks_count(values.size))
        exponents = np.frombuffer(agreed, np.uint8)
        numbers = np.frombuffer(out, np.int32, values.size)
        places = (blocks for blocks, _ in _strips(numbers))
        with np.errstate(invalid="ignore", over="ignore"):  # of blocks that are set to 0 below
            for (blocks, at), place in zip(_strips(values), places, strict=True):
                scaled = blocks * self._scales[exponents[at], None]
                np.rint(scaled, out=scaled)
                np.copyto(place, scaled, casting="unsafe")
                place[exponents[at] == NOT_FINITE] = 0
        np.frombuffer(out, np.uint8)[values.nbytes : values.nbytes + len(agreed)] = exponents
        return values.nbytes + len(agreed)

    def combine(self, parts: Sequence[Encoded], out: memoryview) -> int:
        nbytes = len(parts[0])
        check_sizes(self.name, [len(part) for part in parts], nbytes)
        total, exponents = _split(out[:nbytes])
        for index, part in enumerate(parts):
            numbers, others = _split(part)
            if index == 0:
                np.copyto(total, numbers)
                np.copyto(exponents, others)
            else:
                total += numbers
                exponents[exponents != others] = NOT_FINITE
        return nbytes

    def decode(self, encoded: Encoded, out: F32Array) -> None:
        check_sizes(self.name, [len(encoded)], self.encoded_bytes(out.size))
        numbers, exponents = _split(encoded)
        places = (blocks for blocks, _ in _strips(out))
        with np.errstate(over="ignore"):  # a sum beyond float32 is infinite, as in float32
            for (blocks, at), place in zip(_strips(numbers), places, strict=True):
                np.copyto(place, blocks * self._steps[exponents[at], None], casting="same_kind")

    def error_bound(self, exponents: bytes, sums: npt.NDArray[np.float64]) -> _F64:
        """The bound of the module, for each element of exact sums and the agreed exponents."""
        step = np.repeat(self._steps[np.frombuffer(exponents, np.uint8)], BLOCK_ELEMS)[: sums.size]
        quantised = self.world_size * step / 2
        bound: _F64 = quantised + (np.abs(sums) + quantised) * 2.0**-24 + 2.0**-150
        return bound


def _blocks_count(elems: int) -> int:
    return -(-elems // BLOCK_ELEMS)


def _split(encoded: Encoded) -> tuple[npt.NDArray[np.int32], _U8]:
    """Numbers and exponents: a full block takes 1,025 bytes, the last one no more."""
    blocks_count = -(-len(encoded) // (4 * BLOCK_ELEMS + 1))
    elems, rest = divmod(len(encoded) - blocks_count, 4)
    if rest or elems <= 0:
        raise ValueError(f"shared-exponent: {len(encoded)} bytes are not a chunk")
    octets = np.frombuffer(encoded, np.uint8)
    return octets[: 4 * elems].view(np.int32), octets[4 * elems :]


def _strips(values: npt.NDArray[np.generic]) -> Iterator[tuple[np.ndarray, slice]]:
    """Views of several whole blocks at a time, [blocks, elements], and which blocks they are."""
    whole = values.size // BLOCK_ELEMS
    for first in range(0, whole, _STRIP_BLOCKS):
        at = slice(first, min(first + _STRIP_BLOCKS, whole))
        strip = values[at.start * BLOCK_ELEMS : at.stop * BLOCK_ELEMS]
        yield strip.reshape(-1, BLOCK_ELEMS), at
    if values.size % BLOCK_ELEMS:
        yield values[whole * BLOCK_ELEMS :].reshape(1, -1), slice(whole, whole + 1)
