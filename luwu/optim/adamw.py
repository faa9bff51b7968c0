"""AdamW, as `torch.optim.AdamW`; its moments are on the optimizer node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

from luwu.base.errors import ConfigError
from luwu.optim.adam import Adam
from luwu.optim.base import NetworkArguments
from luwu.wire.hyper import Number


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    torch's arguments and `NetworkArguments`.
    """

    name = "adamw"
    hyper_names: ClassVar[tuple[str, ...]] = ("betas", "eps", "lr", "maximize", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, *, maximize: bool = False,
        **network: Unpack[NetworkArguments],
    ) -> None:  # fmt: skip
        if "decoupled_weight_decay" in network:
            raise TypeError("AdamW takes no decoupled_weight_decay=; luwu.optim.Adam does")
        super().__init__(
            params, lr, betas, eps, weight_decay, maximize=maximize, decoupled_weight_decay=True,
            **network,
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
