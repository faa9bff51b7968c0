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
    elems: int
    """Without the padding."""
    start: int
    """First element of the extent."""
    stop: int
    padded_stop: int


@dataclass(frozen=True, slots=True)
class ExtentPlan:
    """One extent of a unit's gradient."""

    extent: int
    elems: int
    nbytes: int
    """Bytes in the dtype of the push."""
    pieces: tuple[_Piece, ...]
    """One a segment of the extent, in their order."""

    all_segments: int
    """Bitmap of all segments."""

    def absent(self, gradients: Sequence[torch.Tensor | None]) -> int:
        """Bitmap of the segments whose parameter has no gradient."""
        found = 0
        for index, piece in enumerate(self.pieces):
            if gradients[piece.parameter] is None:
                found |= 1 << index
        return found


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
                part.elems,
                part.chunk_start,
                part.chunk_start + part.elems,
                min(part.chunk_start + part.padded_elems, extent.elems),
            )
            for part in layout.extent_segments(index)
        )
        nbytes, all_segments = extent.elems * dtype.itemsize, (1 << len(pieces)) - 1
        plans.append(ExtentPlan(index, extent.elems, nbytes, pieces, all_segments))
    return tuple(plans)


def flat_gradients(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Each gradient as a vector, outside of any graph; a view wherever its memory is in order."""
    return [
        None
        if each is None
        else (each if each.layout == torch.strided else each.to_dense()).detach().reshape(-1)
        for each in gradients
    ]


def write(plan: ExtentPlan, flat: Sequence[torch.Tensor | None], into: torch.Tensor) -> None:
    """Write an extent to its place on the host: zeros where a parameter has no gradient, and in the
    padding."""
    for piece in plan.pieces:
        gradient = flat[piece.parameter]
        if gradient is None:
            into[piece.start : piece.padded_stop].zero_()
            continue
        source = gradient[piece.source : piece.source + piece.elems]
        target = into[piece.start : piece.stop]
        is_plain = target.dtype == source.dtype and source.device.type == "cpu"
        if is_plain and target.nbytes >= _MEMCPY_BYTES_MIN:  # it can go past the cache
            np.copyto(target.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())
        else:
            target.copy_(source)
        if piece.stop < piece.padded_stop:
            into[piece.stop : piece.padded_stop].zero_()
