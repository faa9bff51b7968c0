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
    """Weigh this rank's gradient of a step: by its samples, if its loss is a sum over them.

    Holds until it is changed. 0 for a rank without samples; the sum over all ranks must be above 0.
    Raises: StepOrderError in the middle of a step, whose pushes carry the weight already;
            ConfigError if it is negative, not finite, or a unit has a gradient divide factor.
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
    session.pushes.weigh(value)


def empty_backward() -> None:
    """Take part in a backward without samples: every unit states that it has no gradient.

    Each rank must run as many backwards in a step as the others; this counts as one.
    """
    session = run.session()
    session.check_running()
    with session.attempt():
        session.backward.empty()
