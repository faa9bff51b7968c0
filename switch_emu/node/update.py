"""The factor of gradient clipping; the update itself is in `kernels/`."""

from __future__ import annotations

from luwu.wire.hyper import StepHyper

_CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds it


def clip_scale(hyper: StepHyper, grad_norm: float | None) -> float:
    """The factor of the mean gradient: 1.0 unless it must be clipped."""
    if hyper.max_grad_norm is None:
        return 1.0
    assert grad_norm is not None, "clipping needs the norm; streaming rejects it"
    return min(1.0, hyper.max_grad_norm / (grad_norm + _CLIP_EPSILON))
