"""Stored in fewer bits: bfloat16, and 8 bits by blocks; the reference of what `arithmetic.c` does.

    stored              the value, in a block of 64 with scale s, the largest magnitude in it
    float32, bfloat16   itself
    int8, a code k      sign(k) (k / 127)**2 s
    uint8, a code k     (k / 255)**4 s

Codes lie closer together near zero, so that small moments beside large ones are not lost. The
largest of a block, and zero, are exact. What is above zero in a uint8 or an
unsigned bfloat16 never becomes zero: a division by its root must not meet one.

Rounding is stochastic: a value between two codes becomes the upper one with the probability of its
place between them, so that its mean is the value, and a moment that changes by a thousandth a step
does not stick. The draw is a function of

    seed, version that is made, parameter, tensor (0: weights, 1 ...: state), element

and of nothing else: not of chunks, nodes, threads or attempts. Without a draw values are rounded to
the nearest, and what was widened becomes the codes that it was.

A block with a NaN or an infinity becomes NaN as a whole.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from luwu.aggregate.interface import F32Array
from luwu.base.dtypes import DTYPES, STATE_DTYPES
from luwu.wire.stored import BLOCK_ELEMS

Stored = npt.NDArray[Any]
"""A field of a page: the type of its elements says what it is, uint16 is bfloat16."""

STORED_CODES: Final = {
    np.dtype(DTYPES[name].numpy): DTYPES[name].number for name in (*STATE_DTYPES, "uint8")
}
"""The types of `Stored`, with their numbers in the compiled library."""

SEED: Final = 0x4C7557755F32364E
_MASK: Final = 2**64 - 1
_F: Final = np.float32
_UNSIGNED: Final = _F(255)
_SIGNED_TOP: Final = _F(127**2)
_UNSIGNED_TOP: Final = _F(255**4)
_SIGNED_UNIT: Final = _F(1) / _F(127**2)
_UNSIGNED_UNIT: Final = _F(1) / _F(255**2)
"""Times 127**2, and 255**2, they are 1 exactly."""


class Draw(NamedTuple):
    """The source of the draws of one run: elements of one parameter, in one version."""

    key: int
    """`draw_key` of the version and the parameter."""
    block: int
    """Number in the parameter of the run's first block."""


def draw_key(version: int, parameter: int) -> int:
    """The key of a parameter's draws in the version that is made."""
    return _mixed(_mixed(_mixed(SEED) ^ version) ^ parameter)


def draws(draw: Draw, tensor: int, blocks: range) -> npt.NDArray[np.uint32]:
    """One draw for each element of some blocks, counted from the run's start.

    Shape: [blocks, 64].
    """
    first = np.arange(blocks.start, blocks.stop, dtype=np.uint64) + np.uint64(draw.block)
    keys = _mixed_all(np.uint64(_mixed(draw.key ^ tensor)) ^ first)[:, None]
    low, high = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    x = low + np.arange(BLOCK_ELEMS, dtype=np.uint32) * np.uint32(0x9E3779B9)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= (x >> np.uint32(15)) ^ high
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x


def widen(values: Stored, scales: F32Array | None, out: F32Array) -> None:
    """Write the values of what is stored. Shapes: [C], float32 [C / 64] or None, float32 [C]."""
    if values.dtype == np.float32:
        out[:] = values
    elif values.dtype == np.uint16:
        np.left_shift(values, 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        assert scales is not None
        codes = values.reshape(-1, BLOCK_ELEMS).astype(np.float32)
        if values.dtype == np.int8:
            parts = codes * np.abs(codes) * _SIGNED_UNIT
        else:
            parts = codes * codes * _UNSIGNED_UNIT
            parts *= parts
        np.multiply(parts, scales[:, None], out=out.reshape(-1, BLOCK_ELEMS))


def narrow(
    values: F32Array, into: Stored, scales: F32Array | None,
    drawn: npt.NDArray[np.uint32] | None, *, is_unsigned: bool = False,
) -> None:  # fmt: skip
    """Store values. Shapes as for `widen`; `drawn`: [C / 64, 64], or None: to the nearest.

    `is_unsigned`: in bfloat16, they are not below zero.
    """
    if into.dtype == np.float32:
        into[:] = values
    elif into.dtype == np.uint16:
        _to_bfloat16(values, into, drawn, is_unsigned=is_unsigned)
    else:
        assert scales is not None
        _to_codes(values.reshape(-1, BLOCK_ELEMS), into, scales, drawn)


def _to_bfloat16(
    values: F32Array, into: Stored, drawn: npt.NDArray[np.uint32] | None, *, is_unsigned: bool
) -> None:
    bits = values.view(np.uint32)
    if drawn is None:
        added = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    else:
        added = drawn.reshape(-1) >> np.uint32(16)
    found = (bits + added) >> np.uint32(16)
    if is_unsigned:
        found |= (bits != 0) & (found == 0)
    found[(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)] = 0xFFFF  # NaN
    into[:] = found


def _to_codes(
    values: F32Array, into: Stored, scales: F32Array, drawn: npt.NDArray[np.uint32] | None
) -> None:
    # By their bits: as integers NaN is above infinity, and both above all numbers.
    sizes = values.view(np.uint32) & np.uint32(0x7FFFFFFF)
    if into.dtype == np.uint8:  # none is below zero, or plain torch would give a NaN, too
        sizes[values < 0] = 0x7FC00000
    largest = sizes.max(axis=1)
    scales[:] = largest.view(np.float32)
    scales[largest >= np.uint32(0x7F800000)] = np.nan
    divisor = np.where(largest == 0, _F(1), scales)[:, None]
    chance: F32Array = np.full(1, 0.5, np.float32)
    if drawn is not None:
        chance = (drawn >> np.uint32(8)).astype(np.float32) * _F(2.0**-24)
    with np.errstate(invalid="ignore"):
        parts = sizes.view(np.float32) / divisor
        parts = np.where(parts < 1, parts, _F(1))  # NaN becomes 1
    if into.dtype == np.int8:
        place = parts * _SIGNED_TOP
        lower = np.floor(np.sqrt(place))
        low, high = lower * lower, (lower + _F(1)) * (lower + _F(1))
    else:
        place = parts * _UNSIGNED_TOP
        lower = np.floor(np.sqrt(np.sqrt(parts)) * _UNSIGNED)
        lower = np.maximum(lower, (parts != 0).astype(np.float32))
        low, high = lower * lower, (lower + _F(1)) * (lower + _F(1))
        low, high = low * low, high * high
    codes = lower + (chance * (high - low) < place - low)
    if into.dtype == np.int8:
        codes = np.where(values.view(np.int32) < 0, -codes, codes)
    into.reshape(values.shape)[:] = codes.astype(into.dtype)


def _mixed(value: int) -> int:
    """A bijection of 64 bits without a pattern: SplitMix64's finaliser (Steele et al. 2014)."""
    return int(_mixed_all(np.array([value & _MASK], np.uint64))[0])


def _mixed_all(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)
