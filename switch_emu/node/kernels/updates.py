"""The updates that a node has, one record each: its name, its state, and its arithmetic twice.

The portable arithmetic is torch's, on tensors; the compiled one is a number that
`switch_emu/native/arithmetic.c` knows, with the rounded numbers that it needs of each run. Those
are rounded as torch rounds them: computed in float64 with the C library's `pow`, then cast. An
update of another package (docs/optimizers.md) is found by its entry point, and has no compiled
arithmetic. Torch is imported by who computes, for a node starts without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from luwu.base.errors import ConfigError
from luwu.wire.hyper import Number
from luwu.wire.stored import AVERAGE, keeps_average, without_average

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Hyper = Mapping[str, Number]
Step = Callable[[Any, Any, tuple[Any, ...], int, Hyper], None]
"""(weights, mean gradient, state, updates before this one, hyper-parameters), in place."""

INSTALLED: Final = "luwu.updates"
"""Group of entry points by which other packages bring updates."""
UNCHANGED: Final = 256
"""Flag of a run without hyper-parameters, whose elements are not updated."""
_MAXIMIZE, _DECAY, _NESTEROV, _FIRST, _LERP_FROM_GRAD, _NO_MOMENTUM = 1, 2, 4, 8, 16, 32
_COUPLED, _MOMENTUM_FROM_GRAD = 64, 128


class Compiled(NamedTuple):
    """The compiled arithmetic of an update."""

    number: int
    """Number of the optimizer in the library."""
    prepare: Callable[[Any, Hyper, int], None]
    """Writes the numbers of one run into its `run_t`, by hyper-parameters and updates before."""
    checks: tuple[dict[str, Number], dict[str, Number]]
    """Hyper-parameters with which it is compared with the portable arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One update of pages."""

    optimizer: str
    """Name of the optimizer."""
    fields: tuple[str, ...]
    """State fields, without an average."""
    name: str
    """Written into every state: a page goes on with the arithmetic that made it."""
    step: Step | None = None
    """The portable arithmetic; None if there is nothing to update."""
    compiled: Compiled | None = None
    beside: str | None = None
    """The optimizer that updates parameters which this one does not see as a whole."""
    entry: EntryPoint | None = None
    """Entry point of another package that has the portable arithmetic."""

    def load(self) -> Step | None:
        """The portable arithmetic, imported. Raises ConfigError if it cannot be."""
        if self.entry is None:
            return self.step
        try:
            step: Step = self.entry.load()  # by its name alone: a peer's words are never run
        except (ImportError, AttributeError) as exc:
            raise ConfigError(
                f"optimizer {self.optimizer!r}: its update {self.name} cannot be imported here: "
                f"{exc}"
            ) from exc
        return step


# ---------------------------------------------------------------------- Adam and AdamW


def _adam(weights: Any, grad: Any, state: tuple[Any, ...], updates: int, hyper: Hyper) -> None:
    """torch's fused Adam, or AdamW if the decay is decoupled; AdamW itself does not say so."""
    import torch

    is_decoupled = hyper.get("decoupled_weight_decay", True)
    update = torch._fused_adamw_ if is_decoupled else torch._fused_adam_
    update(
        [weights], [grad], [state[0]], [state[1]], [], [torch.tensor(float(updates + 1))],
        lr=float(hyper["lr"]), beta1=float(hyper["beta1"]), beta2=float(hyper["beta2"]),
        weight_decay=float(hyper["weight_decay"]), eps=float(hyper["eps"]), amsgrad=False,
        maximize=bool(hyper["maximize"]),
    )  # fmt: skip


def _prepare_adam(run: Any, hyper: Hyper, updates: int) -> None:
    lr, decay = float(hyper["lr"]), float(hyper["weight_decay"])
    beta1, beta2 = float(hyper["beta1"]), float(hyper["beta2"])
    step = float(np.float32(updates + 1))  # torch counts steps in float32
    weight, is_from_grad = lerp_weight(1 - beta1)
    is_coupled = not hyper.get("decoupled_weight_decay", True)
    flags = _MAXIMIZE * bool(hyper["maximize"])
    flags |= (_COUPLED if is_coupled else _DECAY) * (decay != 0)
    flags |= _LERP_FROM_GRAD * is_from_grad
    with np.errstate(all="ignore"):  # a bad beta gives NaN weights, as in torch
        step_size = np.float64(lr) / (1 - _power(beta1, step))
        correction = np.sqrt(np.float64(1 - _power(beta2, step)))
    run.flags = flags
    run.weight_decay = decay if is_coupled else 1 - lr * decay
    run.momentum = weight
    run.dampening, run.beta2, run.eps = 1 - beta2, beta2, float(hyper["eps"])
    run.correction, run.step_size = correction, -step_size


_ADAMW_CHECKS: Final[tuple[dict[str, Number], dict[str, Number]]] = (
    {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "maximize": False},
    {"lr": 0.3, "beta1": 0.4, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.0, "maximize": True},
)
_ADAMW: Final = Update(
    optimizer="adamw", fields=("m", "v"), name="torch-fused-adamw", step=_adam,
    compiled=Compiled(1, _prepare_adam, _ADAMW_CHECKS),
)  # fmt: skip
_ADAM: Final = Update(
    optimizer="adam", fields=("m", "v"), name="torch-fused-adam", step=_adam,
    compiled=Compiled(1, _prepare_adam, (
        _ADAMW_CHECKS[0] | {"decoupled_weight_decay": False},
        _ADAMW_CHECKS[1] | {"decoupled_weight_decay": False, "weight_decay": 0.2},
    )),
)  # fmt: skip

# ---------------------------------------------------------------------- SGD


def _sgd(weights: Any, grad: Any, state: tuple[Any, ...], updates: int, hyper: Hyper) -> None:
    """torch's fused SGD; a momentum of zero leaves the buffer alone, as `torch.optim.SGD` does."""
    import torch

    momentum = float(hyper["momentum"]) if state else 0.0
    torch._fused_sgd_(
        [weights], [grad], list(state) if momentum else [],
        weight_decay=float(hyper["weight_decay"]), momentum=momentum, lr=float(hyper["lr"]),
        dampening=float(hyper["dampening"]), nesterov=bool(hyper["nesterov"]),
        maximize=bool(hyper["maximize"]), is_first_step=updates == 0,
    )  # fmt: skip


def _prepare_sgd(run: Any, hyper: Hyper, updates: int) -> None:
    momentum, decay = float(hyper["momentum"]), float(hyper["weight_decay"])
    flags = _MAXIMIZE * bool(hyper["maximize"]) | _DECAY * (decay != 0)
    flags |= _NESTEROV * bool(hyper["nesterov"]) | _FIRST * (updates == 0)
    flags |= _NO_MOMENTUM * (momentum == 0)
    run.flags = flags
    run.weight_decay, run.momentum = decay, momentum
    run.dampening, run.step_size = 1 - float(hyper["dampening"]), -float(hyper["lr"])


_SGD_CHECKS: Final[tuple[dict[str, Number], dict[str, Number]]] = (
    {
        "lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.01, "nesterov": True,
        "maximize": False,
    },
    {
        "lr": 0.3, "momentum": 0.8, "dampening": 0.4, "weight_decay": 0.0, "nesterov": False,
        "maximize": True,
    },
)  # fmt: skip
_SGD: Final = Update(
    optimizer="sgd", fields=(), name="torch-fused-sgd-plain", step=_sgd,
    compiled=Compiled(2, _prepare_sgd, _SGD_CHECKS),
)  # fmt: skip
_SGD_MOMENTUM: Final = Update(
    optimizer="sgd", fields=("momentum",), name="torch-fused-sgd", step=_sgd,
    compiled=Compiled(3, _prepare_sgd, _SGD_CHECKS),
)  # fmt: skip

# ---------------------------------------------------------------------- Lion


def _lion(weights: Any, grad: Any, state: tuple[Any, ...], updates: int, hyper: Hyper) -> None:
    """Lion (Chen et al. 2023), of which torch has no kernel: the sign of a lerp."""
    lr, decay = float(hyper["lr"]), float(hyper["weight_decay"])
    if hyper["maximize"]:
        grad = grad.neg()
    direction = state[0].lerp(grad, 1 - float(hyper["beta1"])).sign_()
    if decay:
        weights.mul_(1 - lr * decay)
    weights.add_(direction, alpha=-lr)
    state[0].lerp_(grad, 1 - float(hyper["beta2"]))


def _prepare_lion(run: Any, hyper: Hyper, updates: int) -> None:
    lr, decay = float(hyper["lr"]), float(hyper["weight_decay"])
    direction, is_direction_from_grad = lerp_weight(1 - float(hyper["beta1"]))
    momentum, is_momentum_from_grad = lerp_weight(1 - float(hyper["beta2"]))
    flags = _MAXIMIZE * bool(hyper["maximize"]) | _DECAY * (decay != 0)
    flags |= _LERP_FROM_GRAD * is_direction_from_grad | _MOMENTUM_FROM_GRAD * is_momentum_from_grad
    run.flags = flags
    run.weight_decay, run.step_size = 1 - lr * decay, -lr
    run.momentum, run.beta2 = direction, momentum


_LION: Final = Update(
    optimizer="lion", fields=("m",), name="torch-lion", step=_lion,
    compiled=Compiled(4, _prepare_lion, (
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "maximize": False},
        {"lr": 0.3, "beta1": 0.4, "beta2": 0.3, "weight_decay": 0.0, "maximize": True},
    )),
)  # fmt: skip

# ---------------------------------------------------------------------- others


NO_OPTIMIZER: Final = "none"
"""An optimizer that updates nothing; it needs no runs."""

_UPDATES: Final = {
    (each.optimizer, each.fields): each
    for each in (
        _ADAM, _ADAMW, _SGD, _SGD_MOMENTUM, _LION,
        Update(
            optimizer="muon", fields=("m", "v"), name="muon-f32+torch-fused-adamw", beside="adamw"
        ),
        Update(
            optimizer=NO_OPTIMIZER, fields=(), name="none",
            compiled=Compiled(0, _prepare_sgd, _SGD_CHECKS),
        ),
    )
}  # fmt: skip


def find_update(optimizer: str, state_fields: tuple[str, ...]) -> Update:
    """The update of an optimizer with these fields, and perhaps an average.

    Raises ConfigError if this node has none.
    """
    own = without_average(state_fields)
    return _UPDATES.get((optimizer, own)) or _installed(optimizer, own)


def kernel_name(optimizer: str, state_fields: tuple[str, ...]) -> str:
    """The name of an optimizer's kernel, whatever version. Raises ConfigError if there is none."""
    name = find_update(optimizer, state_fields).name
    return f"{name}+{AVERAGE}" if keeps_average(state_fields) else name


def _installed(optimizer: str, fields: tuple[str, ...]) -> Update:
    """The update that another package brings; not imported. Raises ConfigError if none does."""
    from importlib import metadata  # takes 40 ms; few jobs have such an update

    for entry in metadata.entry_points(group=INSTALLED, name=optimizer):
        return Update(optimizer=optimizer, fields=fields, name=entry.value, entry=entry)
    known = ", ".join(sorted({name for name, _ in _UPDATES}))
    raise ConfigError(
        f"optimizer {optimizer!r} with state {list(fields)} is not known to this node; "
        f"it has {known}, and no package with an entry point of that name in {INSTALLED} is "
        "installed here"
    )


def lerp_weight(rate: float) -> tuple[np.float32, bool]:
    """(weight, whether it starts at the end) of torch's lerp from an average to what is new."""
    weight = np.float32(rate)
    is_from_end = bool(abs(weight) >= 0.5)
    return (weight - np.float32(1) if is_from_end else weight), is_from_end


def _power(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except (OverflowError, ValueError):  # where C gives infinity or NaN
        return math.inf if abs(base) > 1 else math.nan
