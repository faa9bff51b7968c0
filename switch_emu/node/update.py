"""What surrounds the update of a page: how much its gradient is clipped, and how weights go out.

The update itself is the kernel's (`kernels/`).
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from luwu.wire.hyper import StepHyper
from switch_emu.node.kernels.portable import TORCH_DTYPES
from switch_emu.switch.aggregate import F32Array

_CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds it


def clip_scale(hyper: StepHyper, grad_norm: float | None) -> float:
    """What the mean gradient is multiplied by: 1.0 unless clipping is asked for and needed."""
    if hyper.max_grad_norm is None:
        return 1.0
    assert grad_norm is not None, "clipping needs the norm; streaming refuses it"
    return min(1.0, hyper.max_grad_norm / (grad_norm + _CLIP_EPSILON))


def cast_into(weights: F32Array, dtype: str, into: memoryview) -> None:
    """Write master weights, which may be read-only, to `into` in the wire dtype: nearest even."""
    if dtype == "float32":
        np.copyto(np.frombuffer(into, np.float32), weights)
        return
    address = weights.__array_interface__["data"][0]  # torch warns of read-only arrays
    source = torch.frombuffer(
        (ctypes.c_float * weights.size).from_address(address), dtype=torch.float32
    )
    torch.frombuffer(into, dtype=TORCH_DTYPES[dtype]).copy_(source)
