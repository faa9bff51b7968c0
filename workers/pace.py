"""Slower compute than there is: each unit's forward, and its backward, takes at least so long.

For the study of overlap: on a small machine the compute of a small model is too short to hide an
exchange behind. Waiting takes no core, so the exchange has them to itself, as on a GPU machine.

A unit's clock starts once its weights are there and stops before they are freed or its gradient is
sent. Its marks are therefore put on before a sharding layer's own hooks, inside of them:

    forward    [sharding: weights arrive]  start | compute | wait  [sharding: free]
    backward   [sharding: weights arrive]  start | compute | wait  [sharding: send, free]

In backward the marks are identities in the autograd graph: module hooks of autograd would sit
outside the sharding layer's, and count its waiting as compute.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from luwu.base.clock import SYSTEM_CLOCK, sleep

NS_PER_MS = 1_000_000


class Pace:
    """The least duration of one module's forward and backward."""

    def __init__(self, module: nn.Module, min_ns: int) -> None:
        self._min_ns = min_ns
        self._started_ns = 0
        module.register_forward_pre_hook(self._before_forward)
        module.register_forward_hook(self._after_forward)

    def start(self) -> None:
        """The weights are there; compute begins."""
        self._started_ns = _now_ns()

    def wait(self) -> None:
        """Compute is done: sleep for what is missing."""
        missing_ns = self._started_ns + self._min_ns - _now_ns()
        if missing_ns > 0:
            sleep(missing_ns / 1e9)

    def _before_forward(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        marked: Tensor = _WaitInBackward.apply(inputs[0], self)
        self.start()
        return (marked, *inputs[1:])

    def _after_forward(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        self.wait()
        marked: Tensor = _StartInBackward.apply(output, self)
        return marked


def pace_units(model: nn.Module, compute_ms: float) -> None:
    """Slow down each block, and the head for the root. Call it before sharding; 0 does nothing."""
    if compute_ms == 0:
        return
    blocks, head = model.get_submodule("blocks"), model.get_submodule("head")
    for module in [*blocks.children(), head]:
        Pace(module, int(compute_ms * NS_PER_MS))


def _now_ns() -> int:
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # a kernel launch returns before the work is done
    return SYSTEM_CLOCK.now_ns()


class _StartInBackward(torch.autograd.Function):
    """Identity; its backward is the first thing that happens in the module's backward."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, pace: Pace) -> Tensor:
        ctx.pace = pace
        return output.clone()  # not a view: FSDP2 warns of units that return views

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.pace.start()
        return gradient, None


class _WaitInBackward(torch.autograd.Function):
    """Identity; its backward is the last thing that happens in the module's backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, pace: Pace) -> Tensor:
        ctx.pace = pace
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.pace.wait()
        return gradient, None
