"""Clipping by the global norm, on the optimizer node: the gradient is there, not here.

`clip_grad_norm_` takes the place of `torch.nn.utils.clip_grad_norm_` between backward and `step()`.
The norm is that of the mean gradient over all ranks and parameters, and known after `step()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from luwu.base.errors import ConfigError, StepOrderError
from luwu.training.placeholder import Placeholder
from luwu.wire.description import NORM_TYPES

if TYPE_CHECKING:
    from luwu.training.result import StepResult
    from luwu.training.session import Session


class ClippedNorm:
    """The norm before clipping; a number as soon as `step()` has returned."""

    def __init__(self, session: Session, max_norm: float) -> None:
        self._session = session
        self._result: StepResult | None = None
        self.step = session.step
        self.max_norm = max_norm

    def resolve(self, result: StepResult) -> None:
        """`step()` has returned."""
        self._result = result

    def item(self) -> float:
        """The norm; waits until all sums of the step are complete."""
        if self._result is None:
            raise StepOrderError(
                f"the norm of step {self.step} will never be known: the step was dropped"
                if self._session.clip is not self
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


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> ClippedNorm:
    """Clip the gradient of the coming step to `max_norm`, as torch's function of this name does.

    Returns an object that is a number after `step()`.
    Raises: StepOrderError with `update="streaming"`, which applies gradients before their norm is
            known; ConfigError unless all trainable parameters are given, and the norm that the
            optimizer was made with (`norm_type`).
    """
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    session = _session_of(given)
    if float(norm_type) != session.norm_type:
        raise ConfigError(
            f"norm_type={norm_type!r}, but the node takes the {session.norm_type:g}-norm of each "
            f"step as it adds; make the optimizer with norm_type={norm_type!r}"
        )
    checked_max_norm(max_norm)
    if session.is_streaming:
        raise StepOrderError(
            'clip_grad_norm_ with update="streaming": gradients are applied before the norm of '
            'all of them is known; make the optimizer with update="at_step"'
        )
    ids = {id(parameter) for parameter in given}
    for unit in session.units:
        for member in unit.members:
            if member.requires_grad and id(member.placeholder) not in ids:
                raise ConfigError(
                    f"clip_grad_norm_ without parameter {member.placeholder.luwu_name}: the "
                    "network clips all trainable parameters together; pass model.parameters()"
                )
    session.clip = ClippedNorm(session, float(max_norm))
    return session.clip


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


def _session_of(parameters: list[torch.Tensor]) -> Session:
    sessions = {p.luwu_session if isinstance(p, Placeholder) else None for p in parameters}
    session = sessions.pop() if len(sessions) == 1 else None
    if session is None or not session.is_final:
        raise ConfigError(
            "luwu.clip_grad_norm_ takes the parameters of a model that luwu.fully_shard and a "
            "luwu optimizer were called on; for others use torch.nn.utils.clip_grad_norm_"
        )
    return session
