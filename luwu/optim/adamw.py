"""AdamW, as `torch.optim.AdamW`; its moments are on the optimizer node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from luwu.optim.adam import check_betas
from luwu.optim.base import NetworkOptimizer


class AdamW(NetworkOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), torch's arguments.

    `update`: "at_step" (exact for every loop) or "streaming" (updates hide behind the backward).
    `max_grad_norm`: clip every step by the global norm.
    """

    name = "adamw"
    hyper_names = ("betas", "eps", "lr", "maximize", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, *, update: str = "at_step",
        max_grad_norm: float | None = None, maximize: bool = False, **not_taken: object,
    ) -> None:  # fmt: skip
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(
            params, defaults, update=update, max_grad_norm=max_grad_norm, not_taken=not_taken
        )

    def state_fields(self) -> tuple[str, ...]:
        """First and second moments."""
        return ("m", "v")

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_betas(group)
