"""An aggregator of one's own: gradients travel as fp8 and are added in float32.

A worker sends one byte an element and one exponent a block of 256, about a quarter of float32; what
a slot hands on is the float32 sum. Use it with `luwu run --aggregate fp8`; the entry point in
pyproject.toml lets workers, switch and node find it by that name.

    of a worker    codes [C] (e4m3: 4 bits of exponent, 3 of mantissa), int16 [blocks], 0
    of a slot      float32 [C], 1

Error bound of one contribution, m the block's largest |x|: at most max(|x| / 16, m / 2**16), but no
less than float32 can tell. Additions round as in float32, in rank order; so the bits depend on the
tree, as float32's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from luwu.aggregate import Aggregator

BLOCK = 256
NAN = 0x7F
FP8, SUM = 0, 1  # the last byte


def _magnitudes() -> Any:
    """What the codes 0 to 126 mean, ascending."""
    codes = np.arange(NAN)
    exponent, mantissa = codes >> 3, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return np.where(exponent > 0, normal, mantissa / 8 * 2.0**-6)


MAGNITUDES = _magnitudes()
BORDERS = (MAGNITUDES[:-1] + MAGNITUDES[1:]) / 2
VALUES = np.concatenate([MAGNITUDES, [np.nan], -MAGNITUDES, [np.nan]])


class Fp8(Aggregator):
    """See the module."""

    name: ClassVar[str] = "fp8"

    def encoded_bytes(self, elems: int) -> int:
        """Of one worker."""
        return elems + 2 * _blocks(elems) + 1

    def sum_bytes(self, elems: int) -> int:
        """Of a slot."""
        return 4 * elems + 1

    def combined_bytes(self, parts: Sequence[Any]) -> int:
        """A float32 sum."""
        return self.sum_bytes(_elems(parts[0]))

    def fits(self, elems: int, nbytes: int) -> bool:
        """Either of the two."""
        return nbytes in (self.encoded_bytes(elems), self.sum_bytes(elems))

    def encode(self, values: Any, agreed: bytes, out: memoryview) -> int:
        """Scale each block to below 256 and round it to what fp8 has."""
        count = _blocks(values.size)
        padded = np.zeros((count, BLOCK))
        padded.reshape(-1)[: values.size] = values
        is_finite = np.isfinite(padded)
        size = np.abs(np.where(is_finite, padded, 0))
        _, exponents = np.frexp(size.max(axis=1))
        codes = np.searchsorted(BORDERS, np.ldexp(size, 8 - exponents[:, None]), side="right")
        codes = np.where(is_finite, codes, NAN) | np.where(padded < 0, 0x80, 0)
        octets = np.frombuffer(out, np.uint8)
        octets[: values.size] = codes.reshape(-1)[: values.size]
        at = values.size + 2 * count
        octets[values.size : at] = exponents.astype(np.int16).view(np.uint8)
        octets[at] = FP8
        return at + 1

    def combine(self, parts: Sequence[Any], out: memoryview) -> int:
        """Add in float32, in rank order."""
        elems = _elems(parts[0])
        total = np.frombuffer(out, np.float32, elems)
        total[:] = _decoded(parts[0], elems)
        for part in parts[1:]:
            total += _decoded(part, elems)
        out[4 * elems] = SUM
        return 4 * elems + 1

    def decode(self, encoded: Any, out: Any) -> None:
        """Whatever form it has."""
        out[:] = _decoded(encoded, out.size)


def _blocks(elems: int) -> int:
    return -(-elems // BLOCK)


def _elems(encoded: Any) -> int:
    nbytes = len(encoded) - 1
    if encoded[-1] == SUM:
        return nbytes // 4
    return nbytes - 2 * -(-nbytes // (BLOCK + 2))


def _decoded(encoded: Any, elems: int) -> Any:
    if _elems(encoded) != elems:
        raise ValueError(f"fp8: {len(encoded)} bytes are no chunk of {elems} elements")
    if encoded[-1] == SUM:
        return np.frombuffer(encoded, np.float32, elems)
    codes = np.frombuffer(encoded, np.uint8, elems)
    exponents = np.frombuffer(encoded, np.int16, _blocks(elems), offset=elems).astype(np.int32)
    scaled = np.ldexp(VALUES[codes], np.repeat(exponents - 8, BLOCK)[:elems])
    return scaled.astype(np.float32)
