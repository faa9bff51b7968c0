"""What a script says of a step: numbers to see, the norm to clip to, and unequal batches.

The node divides the sum of all ranks' gradients by the sum of their weights, which are 1 where the
script sets none: then each rank's gradient is the mean over a batch of equal size. With sums,

    luwu.set_gradient_weight(len(x))                        before the step's first backward
    if len(x):
        F.cross_entropy(model(x), y, reduction="sum").backward()
    else:
        luwu.empty_backward()                               no samples: the other ranks go on
    optimizer.step()

the step's gradient is the mean over all samples, however they are spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from luwu.base.errors import ConfigError, StepOrderError
from luwu.base.events import SCALARS
from luwu.training.script import run
from luwu.training.script.session import session_of
from luwu.training.steps.result import ClippedNorm, checked_max_norm, checked_norm_type
from luwu.wire.norms import Clip


def log(**scalars: float | Tensor) -> None:
    """Record numbers of the step whose backward ran last, such as `loss`.

    `luwu status` and the report show those of rank 0. All ranks may call it, or only rank 0.

    Args:
        **scalars: numbers or tensors of one element, by name; units are the caller's. A tensor on a
            GPU is copied to the host, which waits for it.

    Raises:
        ConfigError: a value is not one number.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> loss = model(torch.ones(8, 4)).square().mean()
        >>> loss.backward()
        >>> luwu.log(loss=loss, lr=optimizer.param_groups[0]["lr"])
    """
    session = run.session()
    values = {name: _number(name, value) for name, value in scalars.items()}
    step = session.progress.step - (0 if session.progress.parts else 1)
    session.nic.recorder.event(SCALARS, level="DEBUG", step=step, values=values)


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as exc:
        shape = getattr(value, "shape", None)
        found = type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
        raise ConfigError(
            f"luwu.log({name}=...) takes one number, got a {found}; reduce it to one first"
        ) from exc


def set_gradient_weight(weight: float) -> None:
    """Set the weight of this rank's gradient, for batches of unequal size.

    The step's gradient is the sum over all ranks divided by the sum of their weights. Give the
    number of samples where the loss is a sum over samples. Call it before the step's first
    backward; it holds until it is changed. The default is 1.

    Args:
        weight: 0 or more; 0 for a rank without samples. The sum over all ranks must be above 0.

    Raises:
        StepOrderError: In the middle of a step, whose gradients carry the old weight already.
        ConfigError: If the weight is negative or not finite, or a module has a divide factor.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2, bias=False))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> x = torch.ones(3, 4)  # three samples here; another rank may have five
        >>> luwu.set_gradient_weight(len(x))
        >>> model(x).sum().backward()
        >>> f"{optimizer.step().grad_norm:.3f}"  # of the mean over all samples
        '2.828'
    """
    session = run.session()
    value = float(weight)
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"the weight of a gradient must be 0 or more, got {weight!r}")
    if session.progress.parts or session.backward.is_open:
        raise StepOrderError(
            f"set_gradient_weight in the middle of step {session.step}: gradients have been pushed "
            "with another weight; set the weight of the whole step before its first backward"
        )
    factors = [unit for unit in session.model.added if unit.divide_factor is not None]
    if factors:
        raise ConfigError(
            "set_gradient_weight and set_gradient_divide_factor both say what gradients are "
            "divided by; use one of them"
        )
    session.backward.gradient_weight = value


def empty_backward() -> None:
    """Take part in a backward without samples: this rank states that it has no gradient.

    All ranks must run the same number of backwards in a step; this call counts as one.

    Raises:
        ConfigError: If no job has begun, or the optimizer was not made yet.
        StepAborted: If the step was lost.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> for x in (torch.ones(3, 4), torch.ones(0, 4)):  # the second batch is empty here
        ...     if len(x):
        ...         model(x).sum().backward()
        ...     else:
        ...         luwu.empty_backward()
        >>> optimizer.step().number
        0
    """
    session = run.session()
    session.check_running()
    with session.attempt:
        session.backward.empty()


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0,
    error_if_nonfinite: bool = False, foreach: bool | None = None,
) -> ClippedNorm:  # fmt: skip
    """Clip the gradient of the coming step; call it between `backward()` and `step()`.

    The node clips the mean gradient of all ranks by its exact global norm, before the update. As in
    torch, each call of a step acts on what the calls before it left. The `max_grad_norm` of the
    optimizer comes after all of them.

    Args:
        parameters: All trainable parameters, as `model.parameters()`.
        max_norm: Norm to clip to, above 0; infinity only measures.
        norm_type: 1, 2 or infinity.
        error_if_nonfinite: Have `step()` wait for the norm, and raise RuntimeError if it is not
            finite. The step is left out, on all ranks, with or without it.
        foreach: Changes nothing: the node has its own kernel.

    Returns:
        The norm before this call: an object that turns into a number (`float(norm)`,
        `f"{norm:.2f}"`) once `step()` has returned.

    Raises:
        StepOrderError: With `update="streaming"`, which applies gradients before this call: give
            `max_grad_norm` to the optimizer; before the backward of a step, or after the `step()`
            of an optimizer.
        ConfigError: If a trainable parameter is missing, or for the 17th call in a step.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2, bias=False))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> norm = luwu.clip_grad_norm_(model.parameters(), max_norm=1.0)
        >>> result = optimizer.step()
        >>> f"{norm:.3f}"
        '2.828'
    """
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    session = session_of(given)
    if session is None or not session.is_final:
        raise ConfigError(
            "luwu.clip_grad_norm_ takes the parameters of a model that luwu.fully_shard and a "
            "luwu optimizer were called on; for others use torch.nn.utils.clip_grad_norm_"
        )
    clip = Clip(checked_norm_type(norm_type), checked_max_norm(max_norm))
    if session.progress.is_streaming:
        raise StepOrderError(
            'clip_grad_norm_ with update="streaming": gradients are applied before this call; '
            'give max_grad_norm= to the optimizer instead, or make it with update="at_step"'
        )
    ids = {id(parameter) for parameter in given}
    for unit in session.units:
        for member in unit.members:
            if member.requires_grad and id(member.placeholder) not in ids:
                raise ConfigError(
                    f"clip_grad_norm_ without parameter {member.placeholder.luwu_name}: the "
                    "network clips all trainable parameters together; pass model.parameters()"
                )
    return session.clip(clip, must_be_finite=error_if_nonfinite)
