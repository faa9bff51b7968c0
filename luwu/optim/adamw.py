"""AdamW, as `torch.optim.AdamW`; its moments are on the optimizer node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from luwu.base.errors import ConfigError
from luwu.optim.adam import Adam
from luwu.wire.hyper import Number


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), torch's arguments.

    `update`: "at_step" (exact for every loop) or "streaming" (updates hide behind the backward).
    `max_grad_norm`: clip every step by the global norm.
    """

    name = "adamw"
    hyper_names: ClassVar[tuple[str, ...]] = ("betas", "eps", "lr", "maximize", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, *, update: str = "at_step",
        max_grad_norm: float | None = None, maximize: bool = False, **not_taken: Any,
    ) -> None:  # fmt: skip
        if "decoupled_weight_decay" in not_taken:
            raise TypeError("AdamW takes no decoupled_weight_decay=; luwu.optim.Adam does")
        super().__init__(
            params, lr, betas, eps, weight_decay, update=update, max_grad_norm=max_grad_norm,
            maximize=maximize, decoupled_weight_decay=True, **not_taken,
        )  # fmt: skip

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        self._check_decoupled(group)

    def _numbers(self, group: dict[str, Any]) -> dict[str, Number]:
        self._check_decoupled(group)
        return super()._numbers(group)

    @staticmethod
    def _check_decoupled(group: dict[str, Any]) -> None:
        """torch's groups have the switch too; here it is not sent."""
        if not group["decoupled_weight_decay"]:
            raise ConfigError(
                "a group of luwu.optim.AdamW has decoupled_weight_decay=False; AdamW's decay is "
                "decoupled, take luwu.optim.Adam"
            )
