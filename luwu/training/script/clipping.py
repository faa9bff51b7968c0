"""`luwu.clip_grad_norm_`, in place of torch's function of this name."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from luwu.base.errors import ConfigError, StepOrderError
from luwu.training.script.session import session_of
from luwu.training.steps.clip import ClippedNorm, checked_max_norm


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
    session = session_of(given)
    if session is None or not session.is_final:
        raise ConfigError(
            "luwu.clip_grad_norm_ takes the parameters of a model that luwu.fully_shard and a "
            "luwu optimizer were called on; for others use torch.nn.utils.clip_grad_norm_"
        )
    made_with = session.clipping.norm_type
    if float(norm_type) != made_with:
        raise ConfigError(
            f"norm_type={norm_type!r}, but the node takes the {made_with:g}-norm of each "
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
    return session.clipping.ask(session.step, float(max_norm))
