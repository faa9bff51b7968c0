"""Muon, as `torch.optim.Muon`, with AdamW beside it; the state of both is on the optimizer node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from luwu.base.errors import ConfigError
from luwu.optim.base import NetworkArguments, NetworkOptimizer, check_betas
from luwu.wire.hyper import Number

_ADJUSTMENTS = (None, "original", "match_rms_adamw")
_NS_STEPS_MAX = 100


class Muon(NetworkOptimizer):
    """Muon (Jordan et al. 2024) for matrices, as `torch.optim.Muon`, and AdamW for other groups.

    The node makes the singular values of each matrix's momentum about 1, by a few steps of
    Newton-Schulz: torch's in float32, with one order of sums, so that the bits do not depend on
    chunks, nodes or machine. A matrix must fit a chunk (`--chunk`): 4096 x 4096 elements at most.

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
            check_betas(group)
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
