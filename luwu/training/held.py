"""Finds who else holds a parameter that `fully_shard` replaced by a placeholder.

A list, a closure or a global keeps the tensor that was in the module, with its first values: what
is computed with it differs from torch, and its gradient reaches nobody. Attributes of modules are
looked through when a unit is made; other holders are found when a gradient comes to the tensor.
What a closure or a global computes where no gradient is asked for is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import torch
from torch import Tensor, nn

from luwu.base.errors import ConfigError
from luwu.training.module import class_name

_OWN: Final = frozenset(vars(nn.Module()))
"""What torch keeps in every module."""
_RENEWED: Final = "_flat_weights"
"""torch's list in its RNNs, which is renewed whenever a weight is set."""
_INSTEAD: Final = (
    "use the module's own attribute where it is needed, or name the parameter in ignored_params"
)


def refuse_gradients(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Let a backward raise ConfigError that brings a gradient to a parameter that was replaced."""
    if not parameter.requires_grad:
        return
    text = (
        f"parameter {name} of {class_name(module)} was used as it was before luwu.fully_shard, by "
        "a variable that holds it still. That tensor has the first values and is not trained; "
        + _INSTEAD
    )

    def refuse(gradient: Tensor) -> NoReturn:
        raise ConfigError(text)

    parameter.register_hook(refuse)


def check_attributes(module: nn.Module, replaced: Callable[[nn.Parameter], str | None]) -> None:
    """Raises ConfigError if an attribute of `module` holds a parameter that was replaced.

    `replaced`: the name in its module of a parameter that was; None for others.
    """
    for attribute, value in vars(module).items():
        if attribute in _OWN or (attribute == _RENEWED and isinstance(module, nn.RNNBase)):
            continue
        for parameter in _parameters_in(value):
            name = replaced(parameter)
            if name is not None:
                raise ConfigError(
                    f"fully_shard: attribute {attribute} of {class_name(module)} also holds "
                    f"parameter {name}, and would keep its first values while the network trains "
                    f"the parameter; {_INSTEAD}"
                )


def _parameters_in(value: Any) -> Iterator[nn.Parameter]:
    """Parameters in lists, tuples, sets and dicts, however deep."""
    left, seen = [value], set()
    while left:
        each = left.pop()
        if isinstance(each, torch.Tensor):
            if isinstance(each, nn.Parameter):
                yield each
        elif isinstance(each, (list, tuple, set, frozenset, dict)) and id(each) not in seen:
            seen.add(id(each))
            left.extend(each.values() if isinstance(each, dict) else each)
