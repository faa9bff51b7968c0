"""Lion, which torch does not have; its momentum is on the optimizer node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from luwu.optim.base import NetworkArguments, NetworkOptimizer, check_betas


class Lion(NetworkOptimizer):
    """Lion (Chen et al. 2023, arXiv 2302.06675): the sign of an average is the direction.

    It keeps one moment instead of AdamW's two: the node reads and writes 8 bytes per parameter
    instead of 12. Take a learning rate 3 to 10 times smaller than AdamW's, and a weight decay
    larger by the same factor.

    Args:
        params: Parameters of a sharded model, or groups of them.
        lr: Learning rate.
        betas: Weights of the momentum in the direction and in its own mean, each in [0, 1).
        weight_decay: Share of a weight, times `lr`, that each step takes off.
        maximize: Ascend instead of descend.
        **network: `NetworkArguments`.

    Raises:
        ConfigError: If a number is out of its range, or the parameters are not in the network.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.Lion(model.parameters(), lr=1e-4, weight_decay=0.1)
        >>> model(torch.ones(8, 4)).square().mean().backward()
        >>> optimizer.step().applied
        True
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
        """Name of the momentum."""
        return ("m",)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_betas(group)
