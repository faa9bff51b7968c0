"""An optimizer whose update needs a parameter as a whole: LAMB (You et al. 2020), in two parts.

`Lamb` is what a script constructs. `update` runs on the optimizer node, once for each parameter,
which it gets in its shape, because `Lamb.whole` is True.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from luwu.optim import NetworkArguments, NetworkOptimizer


class Lamb(NetworkOptimizer):
    """Adam's direction, as long as the layer's weights: for large batches."""

    name: ClassVar[str] = "lamb"
    hyper_names: ClassVar[tuple[str, ...]] = ("betas", "eps", "lr", "weight_decay")
    whole: ClassVar[bool] = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6, weight_decay: float = 0.0, **network: Unpack[NetworkArguments],
    ) -> None:  # fmt: skip
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, **network)

    def state_fields(self) -> tuple[str, ...]:
        """Adam's moments; `v` is never below zero."""
        return ("m", "v")


def update(
    weights: Any, grad: Any, state: tuple[Any, ...], updates: int, hyper: Mapping[str, Any]
) -> None:  # fmt: skip
    """Change float32 tensors of the parameter's shape in place."""
    m, v = state
    beta1, beta2 = hyper["beta1"], hyper["beta2"]
    m.lerp_(grad, 1 - beta1)
    v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    direction = m / (1 - beta1 ** (updates + 1))
    direction /= (v / (1 - beta2 ** (updates + 1))).sqrt_().add_(hyper["eps"])
    direction.add_(weights, alpha=hyper["weight_decay"])
    length, step = weights.norm(), direction.norm()
    ratio = float(length / step) if length > 0 and step > 0 else 1.0
    weights.add_(direction, alpha=-hyper["lr"] * ratio)
