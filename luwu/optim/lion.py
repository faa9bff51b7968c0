"""Lion, which torch does not have; its momentum is on the optimizer node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from luwu.optim.base import NetworkArguments, NetworkOptimizer, check_betas


class Lion(NetworkOptimizer):
    """Lion (Chen et al. 2023, arXiv 2302.06675): the sign of an average is the direction.

    One moment instead of AdamW's two, so the node reads and writes 8 bytes a parameter and not 12.
    Take a learning rate 3 to 10 times smaller than AdamW's, and a decay as many times larger.
    """

    name = "lion"
    hyper_names = ("betas", "lr", "maximize", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0, *, maximize: bool = False, **network: Unpack[NetworkArguments],
    ) -> None:  # fmt: skip
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, **network)

    def state_fields(self) -> tuple[str, ...]:
        """The momentum."""
        return ("m",)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_betas(group)
