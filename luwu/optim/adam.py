"""Adam, as `torch.optim.Adam`; its moments are on the optimizer node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

from luwu.optim.base import NetworkArguments, NetworkOptimizer, check_betas


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
