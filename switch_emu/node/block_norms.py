"""Norms of a gradient other than the 2-norm, per block.

The kernels compute the squares of the 2-norm as they add. Clipping by another norm is rare, so it
takes another pass over the sum, here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from luwu.aggregate.sum_in_order import F32Array
from luwu.base.limits import NORM_BLOCK_ELEMS

_REDUCE: dict[float, Callable[..., Any]] = {1.0: np.add.reduceat, np.inf: np.maximum.reduceat}


def block_norms(total: F32Array, norm_type: float) -> tuple[float, ...]:
    """The sum of magnitudes (`norm_type` 1) or the largest one (infinity) of each block of a sum.

    Shapes: float32 [C] -> one float64 for every 4,096 elements; NaN where a block has one.
    """
    starts = np.arange(0, total.size, NORM_BLOCK_ELEMS)
    found = _REDUCE[norm_type](np.abs(total), starts, dtype=np.float64)
    return tuple(found.tolist())
