"""Torch's names of an optimizer's state and hyper-parameters.

Keys are those of `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`, flattened:
`state.NAME.exp_avg` and so on, NAME the parameter's. A parameter that was never updated has no
`momentum_buffer` yet, as in torch. Lion, which torch has not, is called as its authors do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from luwu.wire.description import Description
from luwu.wire.hyper import Number
from luwu.wire.stored import kept_fields

FIELD_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "adam": {"m": "exp_avg", "v": "exp_avg_sq"},
    "adamw": {"m": "exp_avg", "v": "exp_avg_sq"},
    "lion": {"m": "exp_avg"},
    "muon": {"m": "exp_avg", "v": "exp_avg_sq"},
    "sgd": {"momentum": "momentum_buffer"},
}
"""torch's names of our fields by optimizer; those of another optimizer keep their names."""

_OF_WHOLE: Final[Mapping[str, Mapping[str, str]]] = {"muon": {"m": "momentum_buffer"}}
"""torch's names of fields of parameters that another optimizer updates as a whole."""

STEP: Final = "step"
_COUNTING: Final = ("adam", "adamw", "muon")
"""Optimizers whose state has the number of updates of each parameter."""
_LATE: Final = ("sgd",)
"""Optimizers that make their state in the first update."""


def state_keys(
    optimizer: str, state_fields: tuple[str, ...], *, whole: bool
) -> list[tuple[str, str]]:
    """(torch's key, our field) of what a parameter has, in torch's order; `whole`: it is updated
    as a whole."""
    is_other = whole and optimizer in _OF_WHOLE
    names = _OF_WHOLE[optimizer] if is_other else FIELD_NAMES.get(optimizer, {})
    found = [(STEP, STEP)] if optimizer in _COUNTING and not is_other else []
    fields = kept_fields(optimizer, state_fields, whole=whole)
    return found + [(names.get(each, each), each) for each in fields]


def state_tensors(description: Description, index: int, updates: int) -> list[tuple[str, str]]:
    """(name of the tensor, our field) of one trained parameter, in torch's order."""
    optimizer = description.optimizer
    if optimizer in _LATE and not updates:
        return []
    parameter = description.layout.parameters[index]
    keys = state_keys(optimizer, description.state_fields, whole=parameter.whole)
    return [(f"state.{parameter.name}.{key}", field) for key, field in keys]


def torch_hyper(group: Mapping[str, Number]) -> dict[str, Any]:
    """A group's hyper-parameters as torch's groups have them: `betas` is a pair there."""
    named: dict[str, Any] = {k: v for k, v in group.items() if k not in ("beta1", "beta2")}
    if "beta1" in group:
        named["betas"] = [group["beta1"], group["beta2"]]
    return named
