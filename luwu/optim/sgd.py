"""SGD with momentum, as `torch.optim.SGD`; the momentum is on the optimizer node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from luwu.base.errors import ConfigError
from luwu.optim.base import NetworkArguments, NetworkOptimizer
from luwu.wire.hyper import Number


class SGD(NetworkOptimizer):
    """Stochastic gradient descent, as `torch.optim.SGD`; the momentum is on the optimizer node.

    Args:
        params: Parameters of a sharded model, or groups of them.
        lr: Learning rate.
        momentum: Factor of the momentum; 0 keeps no state.
        dampening: Dampening of the momentum.
        weight_decay: Added to the gradient, times the weight.
        nesterov: Nesterov momentum; needs a momentum and no dampening.
        maximize: Ascend instead of descend.
        **network: `NetworkArguments`.

    Raises:
        ConfigError: If a number is out of its range, or the parameters are not in the network.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> model(torch.ones(8, 4)).square().mean().backward()
        >>> optimizer.step().applied
        True
    """

    name = "sgd"
    hyper_names = ("dampening", "lr", "maximize", "momentum", "nesterov", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0,
        dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, *,
        maximize: bool = False, **network: Unpack[NetworkArguments],
    ) -> None:  # fmt: skip
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults, **network)
        self._has_momentum = bool(self.state_fields())

    def state_fields(self) -> tuple[str, ...]:
        """Name of the momentum, if any group has one."""
        return ("momentum",) if any(g["momentum"] for g in self.param_groups) else ()

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ConfigError("nesterov needs a momentum and no dampening")

    def _hyper_of(self, group: dict[str, Any]) -> dict[str, Number]:
        if group["momentum"] and not self._has_momentum:
            raise ConfigError(
                "a group's momentum was changed from 0, but the optimizer was made without, so "
                "the node has no place for it; give a momentum to the constructor"
            )
        return super()._hyper_of(group)
