"""Muon (Jordan et al. 2024): a momentum whose singular values are all made about 1.

    m = lerp(m, grad, 1 - momentum);  u = lerp(grad, m, momentum) if nesterov, else m
    weights = weights (1 - lr weight_decay) - lr adjusted orthogonal(u)

as `torch.optim.Muon`, whose Newton-Schulz iteration computes in bfloat16, in an order that depends
on machine and threads. Here it computes in float32, and each sum has one order
(`switch_emu.native.fold`), so that a matrix has the same bits on every node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from luwu.aggregate.interface import F32Array
from luwu.wire.hyper import Number

_LANES = 256

Product = Callable[..., F32Array]
"""(a, b, transposed=) -> their product; see `switch_emu.native.fold`."""


class Muon:
    """The update of one matrix; a `Step` of the portable kernel."""

    def __init__(self, product: Product) -> None:
        self._product = product

    def __call__(
        self, weights: Any, grad: Any, state: tuple[Any, ...], updates: int,
        hyper: Mapping[str, Number],
    ) -> None:  # fmt: skip
        (m,) = state
        lr, momentum = float(hyper["lr"]), float(hyper["momentum"])
        m.lerp_(grad, 1 - momentum)
        direction = grad.lerp(m, momentum) if hyper["nesterov"] else m
        direction = torch.from_numpy(self.orthogonal(direction.numpy(), hyper))
        rows, columns = weights.shape
        if hyper["match_rms_adamw"]:
            ratio = 0.2 * math.sqrt(max(rows, columns))
        else:
            ratio = math.sqrt(max(1, rows / columns))
        weights.mul_(1 - lr * float(hyper["weight_decay"]))
        weights.add_(direction, alpha=-lr * ratio)

    def orthogonal(self, matrix: F32Array, hyper: Mapping[str, Number]) -> F32Array:
        """Some steps of Newton-Schulz on the matrix over its norm."""
        a, b, c = (np.float32(hyper[f"ns_{name}"]) for name in "abc")
        is_tall = matrix.shape[0] > matrix.shape[1]
        x = np.ascontiguousarray(matrix.T if is_tall else matrix)
        x = x / np.float32(max(_norm(x), float(hyper["eps"])))
        for _ in range(int(hyper["ns_steps"])):
            gram = self._product(x, x, transposed=True)
            # `gram` is symmetric, to the bit: both of its halves are summed in one order.
            update = b * gram + c * self._product(gram, gram, transposed=False)
            x = a * x + self._product(update, x, transposed=False)
        return np.ascontiguousarray(x.T) if is_tall else x


def _norm(values: F32Array) -> float:
    """Of all elements, summed in float64, in one order: lane j of 256 adds j, j + 256, ..."""
    flat = values.ravel()
    whole = flat.size // _LANES * _LANES
    squares = np.square(flat[:whole].reshape(-1, _LANES), dtype=np.float64)
    lanes = np.add.reduce(squares, axis=0)
    rest = np.square(flat[whole:], dtype=np.float64)
    return math.sqrt(math.fsum(lanes) + math.fsum(rest))
