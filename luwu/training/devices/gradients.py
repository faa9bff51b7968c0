"""A unit's gradient on its way out: written once, extent by extent, into memory that is sent from.

Autograd's gradients are private memory of their own shapes. An `ExtentPlan` knows which parts of
them make up an extent; `write` copies these parts, in the wire dtype, to the extent's cell. The
copy is the only pass over a gradient that a worker makes. (`device.py` takes the cells.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from luwu.layout import Layout

_MEMCPY_BYTES_MIN = 256 * 1024
"""Below, torch's own copy has less to do before it begins."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of one parameter in an extent, and the padding behind it."""

    parameter: int
    """Index of the parameter in the unit."""
    source: int
    """First element of the parameter."""
    start: int
    """First element of the extent."""
    stop: int
    padded_stop: int

    @property
    def elems(self) -> int:
        """Without the padding."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ExtentPlan:
    """One extent of a unit's gradient."""

    extent: int
    elems: int
    nbytes: int
    """Bytes in the dtype of the push."""
    pieces: tuple[_Piece, ...]
    """One a segment of the extent, in their order."""

    @property
    def all_segments(self) -> int:
        """Bitmap of all segments."""
        return (1 << len(self.pieces)) - 1

    def absent(self, gradients: Sequence[torch.Tensor | None]) -> int:
        """Bitmap of the segments whose parameter has no gradient."""
        return sum(
            1 << index
            for index, piece in enumerate(self.pieces)
            if gradients[piece.parameter] is None
        )


def gradient_plan(layout: Layout, unit: int, dtype: torch.dtype) -> tuple[ExtentPlan, ...]:
    """The extents of a unit that are pushed, in this dtype."""
    order = {parameter: i for i, parameter in enumerate(layout.units[unit].parameters)}
    plans = []
    for index in layout.trainable_extents(unit):
        extent = layout.extents[index]
        pieces = tuple(
            _Piece(
                order[part.parameter],
                part.parameter_start,
                part.chunk_start,
                part.chunk_start + part.elems,
                min(part.chunk_start + part.padded_elems, extent.elems),
            )
            for part in layout.extent_segments(index)
        )
        plans.append(ExtentPlan(index, extent.elems, extent.elems * dtype.itemsize, pieces))
    return tuple(plans)


@torch.no_grad()
def flat_gradients(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Each gradient as a vector; a view of it wherever its memory is in order."""
    return [
        None
        if gradient is None
        else (gradient.to_dense() if gradient.layout != torch.strided else gradient).reshape(-1)
        for gradient in gradients
    ]


@torch.no_grad()
def write(plan: ExtentPlan, flat: Sequence[torch.Tensor | None], into: torch.Tensor) -> None:
    """Write an extent to its place: zeros where a parameter has no gradient, and in the padding."""
    for piece in plan.pieces:
        gradient = flat[piece.parameter]
        if gradient is None:
            into[piece.start : piece.padded_stop].zero_()
            continue
        part = gradient[piece.source : piece.source + piece.elems]
        _copy(into[piece.start : piece.stop], part)
        if piece.stop < piece.padded_stop:
            into[piece.stop : piece.padded_stop].zero_()


def _copy(into: torch.Tensor, source: torch.Tensor) -> None:
    """Copy, and cast; bytes that stay as they are by way of memcpy, which can go past the cache."""
    is_plain = into.dtype == source.dtype and into.device.type == source.device.type == "cpu"
    if is_plain and into.nbytes >= _MEMCPY_BYTES_MIN:
        np.copyto(into.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())
    else:
        into.copy_(source)
