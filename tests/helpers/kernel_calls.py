"""Calls of an update kernel in place, on arrays: what tests of arithmetic need of one."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from luwu.base.dtypes import DTYPES
from luwu.layout import Layout, segment_runs
from luwu.wire.hyper import StepHyper
from switch_emu.node.kernels import Arrays, Made, Run, UpdateCall, UpdateKernel
from switch_emu.node.kernels.make import make_kernel

Runs = tuple[tuple[int, int, int], ...]


@functools.cache
def _made(optimizer: str, state_fields: tuple[str, ...]) -> Made:
    return make_kernel(optimizer, state_fields, cache=None)


def kernel_for(optimizer: str, state_fields: tuple[str, ...]) -> UpdateKernel:
    """The node's kernel, as it is chosen on this machine."""
    return _made(optimizer, state_fields).kernel


def group_runs(layout: Layout, chunk: int) -> Runs:
    """(start, stop, group) in elements of the chunk: what one kernel call may update."""
    segments = tuple(layout.segments(chunk))
    return segment_runs(segments, [layout.parameters[each.parameter].group for each in segments])


def update_page(
    *, kernel: UpdateKernel, weights: Any, state: tuple[Any, ...], grad: Any, runs: Runs,
    hyper: StepHyper, divisor: float, scale: float, updates_count: int,
) -> None:  # fmt: skip
    """Update one page in place from the sum of its gradients."""
    kernel.update(UpdateCall(
        contributions=[(np.ascontiguousarray(grad).view(np.uint8).data, "float32")],
        old=Arrays(weights, state), new=Arrays(weights, state),
        runs=[
            Run(start=a, stop=b, hyper=hyper.groups[group], updates_count=updates_count)
            for a, b, group in runs
        ],
        divisor=divisor, scale=scale, wire=None, measure=False,
    ))  # fmt: skip


def block_squares(grad: Any) -> tuple[float, ...]:
    """Sums of squares over blocks of 4,096 elements, as the norm is made of."""
    kernel = kernel_for("none", ())
    return kernel.fold([(grad.view(np.uint8).data, "float32")], None, np.empty_like(grad))


def to_wire(weights: Any, dtype: str) -> memoryview:
    """Master weights in the wire dtype."""
    memory = memoryview(bytearray(weights.size * DTYPES[dtype].nbytes))
    kernel_for("none", ()).cast(weights, dtype, memory)
    return memory
