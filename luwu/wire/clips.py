"""Clips of one step by the global norm, in their order: each acts on what the one before left.

Every norm here is homogeneous: that of a gradient times c is c times its norm. So clips are factors
of the gradient as it was summed, and each finds its norm times the factors of those before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from luwu.wire.squares import Squares, norm_of

_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds it


class Clip(NamedTuple):
    """One clip of a step's gradient."""

    norm_type: float
    """1, 2 or infinity."""
    max_norm: float
    """Infinity: the norm is only measured."""

    def factor(self, norm: float) -> float:
        """The factor by which it multiplies a gradient of this norm."""
        return min(1.0, self.max_norm / (norm + _EPSILON))


def norms_of(
    all_squares: Sequence[Squares | None], norm_type: float, clips: Iterable[Clip]
) -> tuple[float, ...]:
    """The norm of the mean gradient over all nodes, and then the norm that each clip finds."""
    found, factor = [norm_of(all_squares, norm_type)], 1.0
    for clip in clips:
        found.append(factor * norm_of(all_squares, clip.norm_type))
        factor *= clip.factor(found[-1])
    return tuple(found)


def clip_factor(clips: Iterable[Clip], norms: Sequence[float]) -> float:
    """The factor of the mean gradient: 1.0 unless it must be clipped. `norms`: `norms_of` them."""
    return math.prod(clip.factor(norm) for clip, norm in zip(clips, norms[1:], strict=True))
