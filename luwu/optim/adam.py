"""Adam, as `torch.optim.Adam`; its moments are on the optimizer node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

from luwu.optim.base import NetworkArguments, NetworkOptimizer, check_betas


class Adam(NetworkOptimizer):
    """Adam (Kingma and Ba 2015), torch's arguments and `NetworkArguments`.

    The weight decay is added to the gradient; with `decoupled_weight_decay`, which a group may set
    too, it shrinks the weights instead, as AdamW's.
    """

    name = "adam"
    hyper_names: ClassVar[tuple[str, ...]] = (
        "betas", "decoupled_weight_decay", "eps", "lr", "maximize", "weight_decay",
    )  # fmt: skip

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, *, maximize: bool = False,
        decoupled_weight_decay: bool = False, **network: Unpack[NetworkArguments],
    ) -> None:  # fmt: skip
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults, **network)

    def state_fields(self) -> tuple[str, ...]:
        """First and second moments."""
        return ("m", "v")

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_betas(group)
