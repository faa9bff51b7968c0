"""Clipping by the global norm, on the optimizer node: the gradient is there, not here.

The norm is that of the mean gradient over all ranks and parameters, and known after `step()`.
"""

from __future__ import annotations

import math

from luwu.base.errors import ConfigError, StepOrderError
from luwu.training.steps.result import StepResult
from luwu.wire.description import NORM_TYPES


class ClippedNorm:
    """The norm before clipping; a number as soon as `step()` has returned."""

    def __init__(self, step: int, max_norm: float) -> None:
        self._result: StepResult | None = None
        self._is_awaited = True
        """A `step()` that makes it known may still come."""
        self.step = step
        self.max_norm = max_norm

    def resolve(self, result: StepResult) -> None:
        """`step()` has returned."""
        self._result = result

    def await_no_more(self) -> None:
        """No `step()` that comes makes it known."""
        self._is_awaited = False

    def item(self) -> float:
        """The norm; waits until all sums of the step are complete."""
        if self._result is None:
            raise StepOrderError(
                f"the norm of step {self.step} will never be known: the step was dropped"
                if not self._is_awaited
                else f"the norm of step {self.step} is known after step(): the ranks' gradients "
                "are summed in the network. Read it there, or from the result of step()"
            )
        return self._result.grad_norm

    def __float__(self) -> float:
        return self.item()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec)

    def __repr__(self) -> str:
        known = self._result is not None
        norm = f"{self.item():.6g}" if known else "known after step()"
        return f"ClippedNorm(step={self.step}, max_norm={self.max_norm}, norm={norm})"


class Clipping:
    """The clipping of a session's steps."""

    def __init__(self) -> None:
        self.norm_type = 2.0
        """The norm of gradients that the node takes."""
        self.asked: ClippedNorm | None = None
        """Clipping asked for in this step."""

    def use(self, norm_type: float) -> None:
        """The optimizer is made."""
        self.norm_type = norm_type

    def ask(self, step: int, max_norm: float) -> ClippedNorm:
        """Clip the gradient of the coming step."""
        self.take()
        self.asked = ClippedNorm(step, max_norm)
        return self.asked

    def take(self) -> ClippedNorm | None:
        """The step is committed or dropped: what was asked for it."""
        asked, self.asked = self.asked, None
        if asked is not None:
            asked.await_no_more()
        return asked


def checked_max_norm(max_norm: float) -> float:
    """The limit as a float. Raises ConfigError unless it is above 0 (infinity: only measure)."""
    value = float(max_norm)
    if math.isnan(value) or value <= 0:
        raise ConfigError(f"max_norm must be above 0, got {max_norm!r}")
    return value


def checked_norm_type(norm_type: float | str) -> float:
    """The norm to clip by. Raises ConfigError unless it is 1, 2 or infinity."""
    value = float(norm_type)
    if value not in NORM_TYPES:
        raise ConfigError(
            f"norm_type={norm_type!r}: gradients are clipped by norm 1, 2 or infinity"
        )
    return value
