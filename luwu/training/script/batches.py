"""Batches that are not equal on all ranks: what a rank's gradient counts for, and having none.

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

from luwu.base.errors import ConfigError, StepOrderError
from luwu.training.script import run


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
    session.pushes.gradient_weight = value


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
    with session.attempt():
        session.backward.empty()
