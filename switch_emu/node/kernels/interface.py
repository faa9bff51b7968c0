"""The interface of update kernels; versions differ in speed only, never in a bit.

One update of P neighbouring pages of C elements each, in float32 throughout:

    total = c0 + c1 + ...             from left to right; narrow types are widened exactly
    mean  = total / float32(divisor)  and, if scale < 1, * float32(scale)
    weights, state = torch's fused update of each run, as on whole vectors; unchanged in a run
                     without hyper-parameters
    average, if it is kept, = torch's lerp from it to the new weights (`luwu.wire.averages`)
    wire  = weights in the wire dtype, to nearest, ties to even

Block squares, in float64: a block is 4,096 elements from the page's start, the last one filled up
with zeros; several pages have whole blocks. Lane j of 256 adds the squares of elements j, j + 256,
j + 512 ... in this order; then the upper half of the lanes is added to the lower half until one
lane is left. A float32 squared fits float64, so a result is not finite exactly if an element is
not.

By pieces, if they are asked for: the squares of the total, of the new weights, and of the float32
difference of new and old weights. A piece lies within one block; its elements have the lanes they
have there. So no sum depends on where a page begins, if pages begin with a block.

Kernels keep nothing between calls and may be called by several threads at once. Which NaN comes
out of a NaN is not promised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from luwu.aggregate.sum_in_order import F32Array
from luwu.base.address import address_of_array
from luwu.base.limits import NORM_BLOCK_ELEMS
from luwu.layout import DTYPE_BYTES
from luwu.wire.hyper import Number
from switch_emu.native.fold import CELL_ELEMS

NO_OPTIMIZER = "none"
"""Name of the kernel that updates nothing; it needs no runs."""

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


@dataclass(frozen=True, slots=True)
class Pieces:
    """Parts of pages that are measured apart; see the module. From the first page's start on."""

    borders: np.ndarray
    """int64 [P, 2]: start, a multiple of 64, and stop of each, in order."""
    squares: np.ndarray
    """float64 [3, P]: what an update writes; of the total, the weights, their change."""

    @classmethod
    def of(cls, borders: Sequence[tuple[int, int]]) -> Pieces:
        """Room for what is measured of these."""
        return cls(
            np.array(borders, np.int64).reshape(-1, 2), np.zeros((3, len(borders)), np.float64)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCall:
    """One update of some pages.

    Shapes: weights, each array of state and what is written: float32 [P, C], or [C] for one page.
    A page's elements have no gap between them; pages may lie apart, the arrays that are read all
    alike and those that are written too. Contributions, runs and the wire cover P * C elements.
    In place if `*_out` are the arrays read; else they are disjoint from these, never partly.
    """

    contributions: Contributions
    weights: F32Array
    state: tuple[F32Array, ...]
    weights_out: F32Array
    state_out: tuple[F32Array, ...]
    runs: Sequence[Run]
    divisor: float
    scale: float
    wire: tuple[memoryview, str] | None
    """Where the new weights go, and their dtype there; None: nowhere."""
    measure: bool
    """Return the block squares of the sum."""
    pieces: Pieces | None = None
    """Parts of the pages that are measured apart."""

    @property
    def read(self) -> tuple[F32Array, ...]:
        """Weights and state as they are read."""
        return (self.weights, *self.state)

    @property
    def written(self) -> tuple[F32Array, ...]:
        """Weights and state as they are written."""
        return (self.weights_out, *self.state_out)


class UpdateKernel(Protocol):
    """Updates pages of one optimizer."""

    name: str
    """Written into the store's configuration: another name, other bits."""
    version: str
    """Its version, "compiled" or "portable": for logs and reports."""
    state_fields: tuple[str, ...]
    """float32 arrays kept beside the weights; the average is the last."""

    def fold(
        self, contributions: Contributions, before: F32Array | None, out: F32Array
    ) -> tuple[float, ...]:
        """out = before + (c0 + c1 + ...). Returns the block squares of `out`.

        Shapes: payloads of C elements, float32 [C]; `before` may be `out` itself.
        """

    def update(self, call: UpdateCall) -> tuple[float, ...]:
        """Update the pages; see the module. Returns block squares of the sum if `measure`, else ().

        Fills in the squares of `pieces`; those of a sum with an infinity mean nothing.
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
    """True if it is done in place. Raises ValueError as `UpdateKernel.update` says."""
    elems, shape = call.weights.size, call.weights.shape
    read, written = call.read, call.written
    check_contributions(call.contributions, elems)
    if not len(read) == len(written) == 1 + len(kernel.state_fields):
        raise ValueError(f"{len(read)} and {len(written)} arrays; state: {kernel.state_fields}")
    for arrays in (read, written):
        for array in arrays:
            _check_pages(array, shape, arrays[0].strides)
    same = [
        address_of_array(left) == address_of_array(right)
        for left, right in zip(read, written, strict=True)
    ]
    if any(same) and not (all(same) and read[0].strides == written[0].strides):
        raise ValueError("an update is in place for all arrays or for none")
    at = 0
    for run in call.runs:
        if run.start != at or run.stop <= at or run.stop % CELL_ELEMS:
            raise ValueError(f"run {run.start}..{run.stop} does not follow {at}")
        at = run.stop
    if at != elems and kernel.name != NO_OPTIMIZER:
        raise ValueError(f"runs cover {at} of {elems} elements")
    if call.wire is not None:
        _check_payload("the wire", *call.wire, elems)
    if call.pieces is not None:
        _check_pieces(call.pieces, elems)
    return all(same)


def check_cast(weights: F32Array, dtype: str, into: memoryview) -> None:
    """Raises ValueError as `UpdateKernel.cast` needs it."""
    if weights.size % CELL_ELEMS:
        raise ValueError(f"{weights.size} elements are not a multiple of {CELL_ELEMS}")
    _check_array(weights, weights.size)
    _check_payload("the wire", into, dtype, weights.size)


def _check_pieces(pieces: Pieces, elems: int) -> None:
    borders, squares = pieces.borders, pieces.squares
    count = len(borders)
    if borders.dtype != np.int64 or borders.shape != (count, 2) or not borders.flags.c_contiguous:
        raise ValueError(f"{borders.dtype} {borders.shape} are not borders of pieces")
    if squares.dtype != np.float64 or squares.shape != (3, count) or not squares.flags.c_contiguous:
        raise ValueError(f"{squares.dtype} {squares.shape} is no room for {count} pieces")
    starts, stops = borders[:, 0], borders[:, 1]
    is_in_order = (starts >= np.append(0, stops[:-1])[:count]) & (starts < stops) & (stops <= elems)
    is_in_block = starts // NORM_BLOCK_ELEMS == (stops - 1) // NORM_BLOCK_ELEMS
    wrong = ~(is_in_order & is_in_block & (starts % CELL_ELEMS == 0))
    if wrong.any():
        start, stop = borders[wrong.argmax()].tolist()
        raise ValueError(f"piece {start}..{stop} is not within a block, in order, on a cell")


def _check_pages(array: F32Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    page_bytes = 4 * shape[-1]
    is_like = array.dtype == np.float32 and array.shape == shape and array.strides == strides
    is_one = len(shape) == 1 and strides == (4,)
    are_apart = len(shape) == 2 and strides[1] == 4 and strides[0] >= page_bytes
    if not is_like or not (is_one or are_apart) or strides[0] % 4:
        raise ValueError(
            f"{array.dtype} {array.shape}, strides {array.strides}, are not float32 {list(shape)} "
            f"in pages that lie like the others, {strides} apart"
        )
    if are_apart and shape[0] > 1 and shape[1] % NORM_BLOCK_ELEMS:
        raise ValueError(f"{shape[0]} pages of {shape[1]} elements do not all begin with a block")


def _check_array(array: F32Array, elems: int) -> None:
    if array.dtype != np.float32 or array.shape != (elems,) or not array.flags.c_contiguous:
        raise ValueError(f"{array.dtype} {array.shape} is not float32 [{elems}] in one piece")


def _check_payload(what: str, payload: memoryview, dtype: str, elems: int) -> None:
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"{what}: dtype {dtype!r} does not travel; {', '.join(DTYPE_BYTES)} do")
    if payload.nbytes != elems * DTYPE_BYTES[dtype]:
        raise ValueError(f"{what} has {payload.nbytes} bytes, expected {elems} of {dtype}")
