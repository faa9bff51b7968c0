"""`fully_shard`, with the shape of FSDP2's: which parameters are pulled and freed together.

    for block in model.blocks:
        luwu.fully_shard(block)      bottom-up: the parts first,
    luwu.fully_shard(model)          then the model, which gets what is left

Each call makes one unit of the parameters in `module.parameters()` that no earlier call took. They
become placeholders at once; the weights they had are uploaded before the first forward.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from luwu.base.errors import ConfigError
from luwu.training.base.names import class_name
from luwu.training.script import run
from luwu.training.script.module import LuwuModule, become_sharded
from luwu.training.script.session import Session
from luwu.training.units.placeholder import Placeholder, become_placeholder, without_weak_references
from luwu.training.units.unit import Precision, Unit

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

ModuleT = TypeVar("ModuleT", nn.Module, list[nn.Module])

_NOT_TAKEN = {
    "mesh": "the weights live in the network, not on a mesh of ranks",
    "dp_mesh_dims": "the weights live in the network, not on a mesh of ranks",
    "shard_placement_fn": "no rank owns a shard: the optimizer node owns all of it",
    "offload_policy": "nothing is left to offload: the weights are not on the worker",
}


def fully_shard(
    module: ModuleT, *, reshard_after_forward: bool | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    ignored_params: Iterable[nn.Parameter] | None = None, **not_taken: object,
) -> ModuleT:  # fmt: skip
    """Make one unit of a module's parameters; as FSDP2's `fully_shard`.

    A unit is pulled before its forward, freed after it, and its gradient is pushed when it is
    complete. Call it bottom-up: parts first, then the model, which takes what is left. Parameters
    become placeholders at once; rank 0's values become the first weights.

    Args:
        module: A module, or a list of modules that form one unit.
        reshard_after_forward: Free the weights after forward, and pull them again for backward. By
            default true for all but the root.
        mp_policy: `param_dtype` is the dtype of compute and of what travels; with
            `reduce_dtype=torch.float32` gradients travel in float32.
        ignored_params: Parameters that stay with the script.
        **not_taken: FSDP2's other arguments; each raises, with the reason.

    Returns:
        The module, now also a `LuwuModule`.

    Raises:
        ConfigError: If the module cannot be a unit, or `init` was not called.
        TypeError: For an argument that has no meaning here, such as `mesh`.

    Examples:
        >>> session = luwu.init_local()
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        >>> first = luwu.fully_shard(model[0])
        >>> model = luwu.fully_shard(model)  # the root takes what is left
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> model(torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """
    for name in not_taken:
        reason = _NOT_TAKEN.get(name, "no such argument")
        raise TypeError(f"luwu.fully_shard takes no {name}=: {reason}")
    session = run.session()
    modules = _checked_modules(module)
    if reshard_after_forward not in (None, True, False):
        raise TypeError(
            f"reshard_after_forward={reshard_after_forward!r}: give True, False or None; no group "
            "of ranks holds shards, so there is no size to reshard to"
        )
    unit = Unit(
        modules,
        policy=_checked(Precision.of(mp_policy)),
        reshard_after_forward=reshard_after_forward,
    )
    session.add_unit(unit, ignored_params or ())
    _take_parameters(session, modules)
    for each in modules:
        session.hooks.register(unit, each)
        become_sharded(each, unit, session)
    return module


def fully_shard_each(model: nn.Module, *classes: type[nn.Module], **arguments: Any) -> nn.Module:
    """Call `fully_shard` on every submodule of these classes, then on the model.

    Args:
        model: The model, with its repeated blocks somewhere inside.
        *classes: Classes of the blocks, usually one.
        **arguments: Arguments of `fully_shard`, the same for every unit.

    Returns:
        The model, now also a `LuwuModule`.

    Raises:
        ConfigError: If the model has no module of these classes, since all of it would be one unit.

    Examples:
        >>> session = luwu.init_local()
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        >>> model = luwu.fully_shard_each(model, torch.nn.Linear)
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> sum(isinstance(each, luwu.LuwuModule) for each in model.modules())  # 2 parts, 1 root
        3
    """
    found = [module for module in model.modules() if isinstance(module, classes)]
    if not found:
        names = ", ".join(each.__name__ for each in classes) or "no class"
        raise ConfigError(
            f"fully_shard_each: the model has no module of {names}, so all of it would be pulled "
            "at once; name the class of its repeated blocks"
        )
    for module in reversed(found):  # an inner one before the outer one
        if module is not model:
            fully_shard(module, **arguments)
    return fully_shard(model, **arguments)


def register_forward_method(module: nn.Module, name: str) -> None:
    """Pull and free the module's unit around another method than `forward`, such as `generate`.

    Args:
        module: A module that `fully_shard` was called on.
        name: Name of the method.

    Raises:
        ConfigError: If the module is not sharded, or has no such method.

    Examples:
        >>> class Encoder(torch.nn.Linear):
        ...     def encode(self, x):
        ...         return self(x).relu() @ self.weight
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(Encoder(4, 2))
        >>> luwu.register_forward_method(model, "encode")
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> model.encode(torch.ones(8, 4)).shape
        torch.Size([8, 4])
    """
    if not isinstance(module, LuwuModule):
        raise ConfigError(f"register_forward_method: call luwu.fully_shard on the module of {name}")
    method = getattr(module, name, None)
    if not callable(method):
        raise ConfigError(f"register_forward_method: {class_name(module)} has no method {name}")
    unit, hooks = module.luwu_unit, module.luwu_session.hooks

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = hooks.before_forward(unit, module, args, kwargs)
        return hooks.after_forward(unit, module, args, method(*args, **kwargs))

    module.__dict__[name] = wrapped


def _checked_modules(module: nn.Module | list[nn.Module]) -> list[nn.Module]:
    modules = list(module) if isinstance(module, (list, tuple)) else [module]
    if not modules:
        raise ConfigError("fully_shard: the list of modules is empty")
    for each in modules:
        if not isinstance(each, nn.Module):
            raise TypeError(f"fully_shard takes modules, got {type(each).__name__}")
        if isinstance(each, LuwuModule):
            raise ConfigError(f"fully_shard was called twice on the same {class_name(each)}")
        if getattr(each.forward, "__func__", None) is nn.Module.forward:
            raise ConfigError(
                f"fully_shard: a {class_name(each)} has no forward, so nothing says when its "
                "weights are needed; shard the modules in it, or the one around it"
            )
    return modules


def _checked(policy: Precision) -> Precision:
    if policy.reduce_dtype not in (None, policy.param_dtype, torch.float32):
        raise ConfigError(
            f"mp_policy: reduce_dtype={policy.reduce_dtype} with param_dtype={policy.param_dtype}; "
            "gradients travel in the dtype of compute or in float32, and are summed in float32 "
            "whatever it is"
        )
    return policy


def _take_parameters(session: Session, modules: list[nn.Module]) -> None:
    """Make placeholders of what no earlier call took; one that is tied becomes it everywhere."""
    inside = [inner for module in modules for inner in module.modules()]
    with without_weak_references(inside):
        for inner in inside:
            for name, parameter in inner._parameters.items():
                if parameter is None or id(parameter) in session.model.ignored:
                    continue
                if isinstance(parameter, UninitializedParameter):
                    raise ConfigError(
                        f"fully_shard: parameter {name} of {class_name(inner)} has no shape yet; "
                        "run the model once on a batch, before luwu.fully_shard, so that its lazy "
                        "modules know their sizes"
                    )
                if not isinstance(parameter, Placeholder):
                    _check_no_hooks(inner, name, parameter)
                    become_placeholder(
                        parameter,
                        f"{name} of {class_name(inner)}",
                        owner=session,
                        device=session.device,
                        keeps_value=session.rank == 0,
                    )
                elif parameter.luwu_owner is not session:
                    raise ConfigError(
                        f"fully_shard: a parameter of {class_name(inner)} belongs to another "
                        "session"
                    )


def _check_no_hooks(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Raises ConfigError for hooks of the script: the parameter that they are on is replaced."""
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise ConfigError(
            f"fully_shard: parameter {name} of {class_name(module)} has hooks (register_hook, "
            "register_post_accumulate_grad_hook), which would never run, as the parameter is "
            "replaced. Register them after fully_shard, or name it in ignored_params"
        )
