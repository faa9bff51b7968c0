"""The page update: sum, measure, divide, clip, and the optimizer's kernel, on one page at a time.

Elements of a page are updated by torch's fused CPU kernels, one call a run of equal
hyper-parameters; runs start on multiples of 64 elements and are padded to them, so the result does
not depend on how the model is cut into pages (design note 0004). Everything is done in the caller's
thread; several pages may be updated at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from luwu.base.errors import ConfigError
from luwu.base.limits import NORM_BLOCK_ELEMS
from luwu.wire.hyper import Number, StepHyper
from switch_emu.switch.aggregate import F32Array

_CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds it

WIRE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Hyper = Mapping[str, Number]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One optimizer's update of a run of elements."""

    name: str
    """Written into the store's configuration: another kernel gives other bits."""
    state_fields: tuple[str, ...]
    """float32 arrays kept beside the weights."""
    run: Callable[[Any, Any, tuple[Any, ...], int, Hyper], None]
    """(weights, gradient, state, updates before this one, hyper-parameters), all in place."""


def _adamw(weights: Any, grad: Any, state: tuple[Any, ...], updates: int, hyper: Hyper) -> None:
    torch._fused_adamw_(
        [weights],
        [grad],
        [state[0]],
        [state[1]],
        [],
        [torch.tensor(float(updates + 1))],
        lr=float(hyper["lr"]),
        beta1=float(hyper["beta1"]),
        beta2=float(hyper["beta2"]),
        weight_decay=float(hyper["weight_decay"]),
        eps=float(hyper["eps"]),
        amsgrad=False,
        maximize=bool(hyper["maximize"]),
    )


def _sgd(weights: Any, grad: Any, state: tuple[Any, ...], updates: int, hyper: Hyper) -> None:
    torch._fused_sgd_(
        [weights],
        [grad],
        list(state),
        weight_decay=float(hyper["weight_decay"]),
        momentum=float(hyper["momentum"]) if state else 0.0,
        lr=float(hyper["lr"]),
        dampening=float(hyper["dampening"]),
        nesterov=bool(hyper["nesterov"]),
        maximize=bool(hyper["maximize"]),
        is_first_step=updates == 0,
    )


KERNELS: dict[tuple[str, tuple[str, ...]], Kernel] = {
    ("adamw", ("m", "v")): Kernel("torch-fused-adamw", ("m", "v"), _adamw),
    ("sgd", ("momentum",)): Kernel("torch-fused-sgd", ("momentum",), _sgd),
    ("sgd", ()): Kernel("torch-fused-sgd-plain", (), _sgd),
    ("none", ()): Kernel("none", (), lambda *_: None),
}
"""By the optimizer's name and its state fields, as the job's description states them."""


def kernel_for(optimizer: str, state_fields: tuple[str, ...]) -> Kernel:
    """The kernel of an optimizer. Raises ConfigError if the node has none."""
    kernel = KERNELS.get((optimizer, state_fields))
    if kernel is None:
        known = ", ".join(sorted({name for name, _ in KERNELS}))
        raise ConfigError(
            f"optimizer {optimizer!r} with state {list(state_fields)} is not known to this node; "
            f"it has {known}"
        )
    return kernel


def block_squares(grad: F32Array) -> tuple[float, ...]:
    """Sum of squares of each block of 4,096 elements, in float64.

    A float32 squared fits float64, so a result is not finite exactly if an element is not. The
    blocks are added by the caller, exactly, so the norm does not depend on chunks or nodes.
    """
    whole = grad.size // NORM_BLOCK_ELEMS * NORM_BLOCK_ELEMS
    squares: list[float] = []
    group = NORM_BLOCK_ELEMS * 4  # 128 KiB of float64: stays in the cache
    for start in range(0, whole, group):
        doubles = grad[start : min(start + group, whole)].astype(np.float64)
        np.multiply(doubles, doubles, out=doubles)
        squares.extend(np.add.reduce(doubles.reshape(-1, NORM_BLOCK_ELEMS), axis=1).tolist())
    if whole < grad.size:
        doubles = grad[whole:].astype(np.float64)
        squares.append(float(np.add.reduce(doubles * doubles)))
    return tuple(squares)


def clip_scale(hyper: StepHyper, grad_norm: float | None) -> float:
    """What the mean gradient is multiplied by: 1.0 unless clipping is asked for and needed."""
    if hyper.max_grad_norm is None:
        return 1.0
    assert grad_norm is not None, "clipping needs the norm; streaming refuses it"
    return min(1.0, hyper.max_grad_norm / (grad_norm + _CLIP_EPSILON))


def update_page(
    *, kernel: Kernel, weights: F32Array, state: tuple[F32Array, ...], grad: F32Array,
    runs: tuple[tuple[int, int, int], ...], hyper: StepHyper, divisor: float, scale: float,
    updates_count: int,
) -> None:  # fmt: skip
    """Update one page in place from the sum of its gradients; `grad` is used up.

    Shapes: weights, grad and each array of state float32 [C]; runs as `Layout.group_runs`.
    """
    grad /= np.float32(divisor)
    if scale < 1.0:
        grad *= np.float32(scale)
    tensors = tuple(torch.from_numpy(array) for array in (weights, grad, *state))
    with torch.no_grad():
        for start, stop, group in runs:
            cut = tuple(tensor[start:stop] for tensor in tensors)
            kernel.run(cut[0], cut[1], cut[2:], updates_count, hyper.groups[group])


def cast_into(weights: F32Array, dtype: str, into: memoryview) -> None:
    """Write master weights, which may be read-only, to `into` in the wire dtype: nearest even."""
    if dtype == "float32":
        np.copyto(np.frombuffer(into, np.float32), weights)
        return
    address = weights.__array_interface__["data"][0]  # torch warns of read-only arrays
    source = torch.frombuffer(
        (ctypes.c_float * weights.size).from_address(address), dtype=torch.float32
    )
    torch.frombuffer(into, dtype=WIRE_DTYPES[dtype]).copy_(source)


def to_wire(weights: F32Array, dtype: str) -> memoryview:
    """A copy of master weights in the wire dtype, rounded to nearest even."""
    if dtype == "float32":
        return weights.copy().view(np.uint8).data
    cast = torch.from_numpy(weights).to(WIRE_DTYPES[dtype])
    octets: memoryview = cast.view(torch.uint8).numpy().data
    return octets
