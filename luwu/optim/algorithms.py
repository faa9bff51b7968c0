"""Adam, AdamW, Lion, Muon and SGD; what they keep of each parameter is on the optimizer node."""

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
        self._hyper_of(group)

    def _hyper_of(self, group: dict[str, Any]) -> dict[str, Number]:
        if not group["decoupled_weight_decay"]:  # torch's groups have it too; here it is not sent
            raise ConfigError(
                "a group of luwu.optim.AdamW has decoupled_weight_decay=False; AdamW's decay is "
                "decoupled, take luwu.optim.Adam"
            )
        return super()._hyper_of(group)


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


_ADJUSTMENTS = (None, "original", "match_rms_adamw")
_NS_STEPS_MAX = 100


class Muon(NetworkOptimizer):
    """Muon (Jordan et al. 2024) for matrices, as `torch.optim.Muon`, and AdamW for other groups.

    The node makes the singular values of each matrix's momentum about 1, by a few steps of
    Newton-Schulz: torch's in float32, with one order of sums, so that the bits do not depend on
    chunks, nodes or machine. The node has the largest matrix in memory as it updates it.

    Args:
        params: Matrices of a sharded model, or groups of parameters. A group with
            `"use_muon": False` is updated by AdamW: embeddings, biases, norms, the last layer.
        lr: Learning rate; AdamW usually wants another one in its group.
        weight_decay: Share of a weight, times `lr`, that each step takes off.
        momentum: Decay of the running mean of the gradient.
        nesterov: Look ahead along the momentum.
        ns_coefficients: Of the quintic polynomial of Newton-Schulz.
        eps: Smallest norm to divide by; AdamW's is `adamw_eps`.
        ns_steps: Steps of Newton-Schulz.
        adjust_lr_fn: "original" (None means it): times sqrt(max(1, rows / columns)).
            "match_rms_adamw": times 0.2 sqrt(max(rows, columns)), so that AdamW's learning rate and
            weight decay fit.
        betas: AdamW's.
        adamw_eps: AdamW's.
        **network: `NetworkArguments`.

    Raises:
        ConfigError: If a number is out of its range, a parameter is no matrix, or the parameters
            are not in the network.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> groups = [{"params": [model.weight]}, {"params": [model.bias], "use_muon": False}]
        >>> optimizer = luwu.optim.Muon(groups, lr=0.02)
        >>> model(torch.ones(8, 4)).square().mean().backward()
        >>> optimizer.step().applied
        True
    """

    name = "muon"
    also_updates = ("adamw",)
    hyper_names = ("lr", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.1,
        momentum: float = 0.95, nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315), eps: float = 1e-7,
        ns_steps: int = 5, adjust_lr_fn: str | None = None, *,
        betas: tuple[float, float] = (0.9, 0.999), adamw_eps: float = 1e-8,
        **network: Unpack[NetworkArguments],  # more than ten: torch's arguments, and AdamW's
    ) -> None:  # fmt: skip
        defaults = {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn, "betas": betas, "adamw_eps": adamw_eps,
            "use_muon": True,
        }  # fmt: skip
        super().__init__(params, defaults, **network)

    def state_fields(self) -> tuple[str, ...]:
        """Names of AdamW's moments; of a matrix the first, its momentum, is kept alone."""
        return ("m", "v")

    def _sees_whole(self, group: dict[str, Any]) -> bool:
        return bool(group["use_muon"])

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if not group["use_muon"]:
            check_betas(group["betas"])
            return
        for parameter in group["params"]:
            if parameter.ndim != 2:
                raise ConfigError(
                    f"luwu.optim.Muon updates matrices, got a parameter of shape "
                    f"{tuple(parameter.shape)}; put it into a group with use_muon=False, which "
                    "AdamW updates"
                )
        if not 0 <= float(group["momentum"]) < 1:
            raise ConfigError(f"momentum must be in [0, 1), got {group['momentum']!r}")
        if len(group["ns_coefficients"]) != 3:
            raise ConfigError(f"ns_coefficients must be three, got {group['ns_coefficients']!r}")
        if not 0 < int(group["ns_steps"]) < _NS_STEPS_MAX:
            raise ConfigError(
                f"ns_steps must be 1 to {_NS_STEPS_MAX - 1}, got {group['ns_steps']!r}"
            )
        if group["adjust_lr_fn"] not in _ADJUSTMENTS:
            raise ConfigError(
                f"adjust_lr_fn must be one of {_ADJUSTMENTS}, got {group['adjust_lr_fn']!r}"
            )

    def _hyper_of(self, group: dict[str, Any]) -> dict[str, Number]:
        lr, decay = float(group["lr"]), float(group["weight_decay"])
        if not group["use_muon"]:
            beta1, beta2 = map(float, group["betas"])
            return {
                "lr": lr, "weight_decay": decay, "beta1": beta1, "beta2": beta2,
                "eps": float(group["adamw_eps"]), "maximize": False,
            }  # fmt: skip
        a, b, c = map(float, group["ns_coefficients"])
        return {
            "lr": lr, "weight_decay": decay, "momentum": float(group["momentum"]),
            "nesterov": bool(group["nesterov"]), "ns_a": a, "ns_b": b, "ns_c": c,
            "eps": float(group["eps"]), "ns_steps": int(group["ns_steps"]),
            "match_rms_adamw": group["adjust_lr_fn"] == "match_rms_adamw",
        }  # fmt: skip


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
