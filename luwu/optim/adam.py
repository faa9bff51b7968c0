"""Adam and AdamW, as in `torch.optim`; their moments are on the optimizer node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

from luwu.base.errors import ConfigError
from luwu.optim.base import NetworkArguments, NetworkOptimizer, check_betas
from luwu.wire.hyper import Number


class Adam(NetworkOptimizer):
    """Adam (Kingma and Ba 2015), as `torch.optim.Adam`; its moments are on the optimizer node.

    Args:
        params: Parameters of a sharded model, or groups of them.
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its square, each in [0, 1).
        eps: Added to the denominator.
        weight_decay: Added to the gradient, times the weight.
        maximize: Ascend instead of descend.
        decoupled_weight_decay: Shrink the weights by the decay instead, as AdamW does; a group may
            set it too.
        **network: `NetworkArguments`.

    Raises:
        ConfigError: If a number is out of its range, or the parameters are not in the network.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.Adam(model.parameters(), lr=1e-3)
        >>> model(torch.ones(8, 4)).square().mean().backward()
        >>> optimizer.step().applied
        True
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
        """Names of the first and second moments."""
        return ("m", "v")

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_betas(group)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), as `torch.optim.AdamW`.

    Its moments are on the optimizer node; weights end with torch's bits (`fused=True`).

    Args:
        params: Parameters of a sharded model, or groups of them.
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its square, each in [0, 1).
        eps: Added to the denominator.
        weight_decay: Share of a weight, times `lr`, that each step takes off.
        maximize: Ascend instead of descend.
        **network: `NetworkArguments`.

    Raises:
        ConfigError: If a number is out of its range, or the parameters are not in the network.
        TypeError: For an argument that torch's class does not take either.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> decay, plain = [model.weight], [model.bias]
        >>> groups = [{"params": decay}, {"params": plain, "weight_decay": 0.0}]
        >>> optimizer = luwu.optim.AdamW(groups, lr=1e-3, max_grad_norm=1.0)
        >>> model(torch.ones(8, 4)).square().mean().backward()
        >>> optimizer.step().applied
        True
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
