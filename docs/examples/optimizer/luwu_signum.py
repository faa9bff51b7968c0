"""An optimizer of one's own: signSGD with momentum (Bernstein et al. 2018), in two parts.

`Signum` is what a script constructs. `update` runs on the optimizer node, page by page; the entry
point in pyproject.toml lets the node find it by the optimizer's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from luwu.optim import NetworkArguments, NetworkOptimizer


class Signum(NetworkOptimizer):
    """The sign of an average of gradients is the direction; one moment, 8 bytes a parameter."""

    name: ClassVar[str] = "signum"
    hyper_names: ClassVar[tuple[str, ...]] = ("lr", "momentum", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.9,
        weight_decay: float = 0.0, **network: Unpack[NetworkArguments],
    ) -> None:  # fmt: skip
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults, **network)

    def state_fields(self) -> tuple[str, ...]:
        """The average."""
        return ("m",)


def update(
    weights: Any, grad: Any, state: tuple[Any, ...], updates: int, hyper: Mapping[str, Any]
) -> None:  # fmt: skip
    """Change float32 tensors [n] in place; `updates` is how often this page was updated before.

    Element by element: what n is, and where a parameter begins, is not known here.
    """
    (m,) = state
    m.lerp_(grad, 1 - hyper["momentum"])
    weights.mul_(1 - hyper["lr"] * hyper["weight_decay"])
    weights.add_(m.sign(), alpha=-hyper["lr"])
