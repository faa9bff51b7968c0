"""The interface of update kernels; versions differ in speed only, never in a bit.

One update of P neighbouring pages of C elements each, in float32 throughout; what is stored in
fewer bits (`narrow.py`) is widened before, and rounded after, by the draws of its run:

    total = c0 + c1 + ...             from left to right; narrow types are widened exactly
    mean  = total / float32(divisor)  and, if scale < 1, * float32(scale)
    weights, state = torch's fused update of each run, as on whole vectors; unchanged in a run
                     without hyper-parameters
    average, if it is kept, = torch's lerp from it to the new weights (`luwu.wire.stored`)
    wire  = weights in the wire dtype, to nearest, ties to even

Block squares, in float64: a block is 4,096 elements from the page's start, the last one filled up
with zeros; several pages have whole blocks. Lane j of 256 adds the squares of elements j, j + 256,
j + 512 ... in this order; then the upper half of the lanes is added to the lower half until one
lane is left. A float32 squared fits float64, so a result is not finite exactly if an element is
not.

Kernels keep nothing between calls and may be called by several threads at once. Which NaN comes
out of a NaN is not promised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from luwu.aggregate.interface import F32Array
from luwu.base.dtypes import DTYPES, WIRE_DTYPES
from luwu.base.limits import NORM_BLOCK_ELEMS
from luwu.wire.hyper import Number
from switch_emu.native.fold import CELL_ELEMS
from switch_emu.node.kernels.narrow import STORED_CODES, Draw, Stored
from switch_emu.node.kernels.updates import NO_OPTIMIZER

Scales = tuple[F32Array | None, ...]
Scaled = tuple[Stored, F32Array | None]
"""What is stored, and its scales if that is 8 bits."""

Contributions = Sequence[tuple[memoryview, str]]
"""Payloads with their dtypes, at any address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Elements `start` to `stop` of the pages, multiples of 64, that are updated alike."""

    start: int
    stop: int
    hyper: Mapping[str, Number] | None
    """Hyper-parameters of their group; None: these elements keep their weights and state."""
    updates_count: int = 0
    """Updates of these elements before this one."""
    draw: Draw | None = None
    """How they are rounded; needed where something is stored in fewer bits than float32. The
    elements are then neighbours in one parameter, from a multiple of 64 on."""


class Arrays(NamedTuple):
    """Weights and state of some pages, as they are stored.

    Shapes: [P, C] each, or [C] for one page, float32 or another type of `narrow.Stored`; an average
    is float32. A page's elements have no gap between them; pages may lie apart, by array.
    """

    weights: Stored
    state: tuple[Stored, ...]
    scales: Scales = ()
    """Of the state in 8 bits, float32 [P, C / 64] or [C / 64], None for others; () if none is."""

    @property
    def all(self) -> tuple[Stored, ...]:
        """Weights, then state."""
        return (self.weights, *self.state)

    @property
    def pairs(self) -> list[Scaled]:
        """Each of `all`, with its scales."""
        scales = (None, *(self.scales or (None,) * len(self.state)))
        return list(zip(self.all, scales, strict=True))

    @property
    def is_narrow(self) -> bool:
        """True if something is stored in fewer bits than float32."""
        return any(array.dtype != np.float32 for array in self.all)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCall:
    """One update of some pages; contributions, runs and the wire cover P * C elements."""

    contributions: Contributions
    old: Arrays
    new: Arrays
    """Each array is the old one, or disjoint from it."""
    runs: Sequence[Run]
    divisor: float
    scale: float
    wire: tuple[memoryview, str] | None
    """Memory for the new weights, and their dtype there; None: they go nowhere."""
    measure: bool
    """Return the block squares of the sum."""
    shape: tuple[int, ...] | None = None
    """Shape of the page's only parameter, if the update sees it as a whole; else None."""


class UpdateKernel(Protocol):
    """Updates pages of one optimizer."""

    name: str
    """Written into the store's configuration: another name, other bits."""
    version: str
    """Either "compiled" or "portable": for logs and reports."""
    state_fields: tuple[str, ...]
    """Arrays kept beside the weights; the average is the last."""

    def fold(
        self, contributions: Contributions, before: F32Array | None, out: F32Array
    ) -> tuple[float, ...]:
        """out = before + (c0 + c1 + ...). Returns the block squares of `out`.

        Shapes: payloads of C elements, float32 [C]; `before` may be `out` itself.
        """

    def update(self, call: UpdateCall) -> tuple[float, ...]:
        """Update the pages; see the module. Returns block squares of the sum if `measure`, else ().

        Raises: ValueError if shapes, dtypes or runs do not fit; nothing is written then.
        """

    def cast(self, weights: F32Array, dtype: str, into: memoryview) -> None:
        """Write weights to `into` in the wire dtype, as an update does.

        Shapes: float32 [C], which may be read-only, and C elements of `dtype`. Raises ValueError
        if they do not fit.
        """

    def enter_thread(self) -> None:
        """To be called once by each thread that will update pages."""


@dataclass(frozen=True, slots=True)
class Made:
    """A kernel, and why it is this version."""

    kernel: UpdateKernel
    reason: str


def check_contributions(contributions: Contributions, elems: int) -> None:
    """Raises ValueError unless each has `elems` elements of a dtype that travels."""
    if not contributions:
        raise ValueError("nothing to sum: there is no contribution")
    if elems % CELL_ELEMS:
        raise ValueError(f"{elems} elements are not a multiple of {CELL_ELEMS}")
    for index, (payload, dtype) in enumerate(contributions):
        _check_payload(f"contribution {index}", payload, dtype, elems)


def check_fold(contributions: Contributions, before: F32Array | None, out: F32Array) -> None:
    """Raises ValueError as `UpdateKernel.fold` needs it."""
    check_contributions(contributions, out.size)
    for array in (out,) if before is None else (before, out):
        _check_array(array, out.size)


def check_update(kernel: UpdateKernel, call: UpdateCall) -> bool:
    """True if all is done in place. Raises ValueError as `UpdateKernel.update` says."""
    elems, shape = call.old.weights.size, call.old.weights.shape
    read, written = call.old.all, call.new.all
    check_contributions(call.contributions, elems)
    if not len(read) == len(written) == 1 + len(kernel.state_fields):
        raise ValueError(f"{len(read)} and {len(written)} arrays; state: {kernel.state_fields}")
    for arrays in (call.old, call.new):
        for array, like in zip(arrays.all, read, strict=True):
            _check_pages(array, like.dtype, shape)
        _check_scales(arrays)
    pairs = list(zip(read, written, strict=True))
    same = [pair for pair in pairs if pair[0].ctypes.data == pair[1].ctypes.data]
    if any(one.strides != other.strides for one, other in same):
        raise ValueError("an array is updated in place, and its pages are to lie elsewhere")
    if call.old.is_narrow and any(run.hyper is not None and run.draw is None for run in call.runs):
        raise ValueError("a run of what is stored in fewer bits has no draw")
    at = 0
    for run in call.runs:
        if run.start != at or run.stop <= at or run.stop % CELL_ELEMS:
            raise ValueError(f"run {run.start}..{run.stop} does not follow {at}")
        at = run.stop
    if at != elems and kernel.name != NO_OPTIMIZER:
        raise ValueError(f"runs cover {at} of {elems} elements")
    if call.wire is not None:
        _check_payload("the wire", *call.wire, elems)
    return len(same) == len(pairs)


def check_cast(weights: F32Array, dtype: str, into: memoryview) -> None:
    """Raises ValueError as `UpdateKernel.cast` needs it."""
    if weights.size % CELL_ELEMS:
        raise ValueError(f"{weights.size} elements are not a multiple of {CELL_ELEMS}")
    _check_array(weights, weights.size)
    _check_payload("the wire", into, dtype, weights.size)


def _check_pages(array: Stored, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
    size = array.itemsize
    is_like = array.dtype == dtype and array.dtype in STORED_CODES and array.shape == shape
    is_one = len(shape) == 1 and array.strides == (size,)
    are_apart = (
        len(shape) == 2 and array.strides[1:] == (size,) and array.strides[0] >= size * shape[-1]
    )
    if not is_like or not (is_one or are_apart) or (are_apart and array.strides[0] % 4):
        raise ValueError(
            f"{array.dtype} {array.shape}, strides {array.strides}, are not pages of {dtype} "
            f"{list(shape)} one behind the other"
        )
    if are_apart and shape[0] > 1 and shape[1] % NORM_BLOCK_ELEMS:
        raise ValueError(f"{shape[0]} pages of {shape[1]} elements do not all begin with a block")


def _check_scales(arrays: Arrays) -> None:
    """Raises ValueError unless each array of state in 8 bits has its scales."""
    for array, scale in arrays.pairs:
        if (array.itemsize == 1) != (scale is not None):
            raise ValueError(f"{array.dtype} with scales {scale}")
        if scale is None:
            continue
        expected = (*array.shape[:-1], array.shape[-1] // CELL_ELEMS)
        is_like = scale.dtype == np.float32 and scale.shape == expected
        if not is_like or scale.strides != (*array.strides[:-1], 4):
            raise ValueError(f"{scale.dtype} {scale.shape} are not scales of {array.shape}")


def _check_array(array: F32Array, elems: int) -> None:
    if array.dtype != np.float32 or array.shape != (elems,) or not array.flags.c_contiguous:
        raise ValueError(f"{array.dtype} {array.shape} is not float32 [{elems}] in one piece")


def _check_payload(what: str, payload: memoryview, dtype: str, elems: int) -> None:
    if dtype not in WIRE_DTYPES:
        raise ValueError(f"{what}: dtype {dtype!r} does not travel; {', '.join(WIRE_DTYPES)} do")
    if payload.nbytes != elems * DTYPES[dtype].nbytes:
        raise ValueError(f"{what} has {payload.nbytes} bytes, expected {elems} of {dtype}")
