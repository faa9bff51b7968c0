"""`luwu.clip_grad_norm_`, in place of torch's function of this name."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from luwu.base.errors import ConfigError, StepOrderError
from luwu.training.script.session import session_of
from luwu.training.steps.clip import ClippedNorm, checked_max_norm, checked_norm_type
from luwu.wire.norms import Clip


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
        StepOrderError: With `update="streaming"`, which applies gradients before their norm is
            known; before the backward of a step, or after the `step()` of an optimizer.
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
    return session.clip(clip, must_be_finite=error_if_nonfinite)
