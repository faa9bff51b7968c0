"""The state of autograd in this thread.

While one runs, every tensor that an operation makes is wrapped, so weights cannot be received in
it: that is done outside. A unit that ran in a transform keeps its weights until the next forward
outside of one, or the end of the step, since the backward of `torch.func.grad` is not seen by
hooks. Transforms are over inputs; gradients of weights come from `loss.backward()` over a forward
outside of any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def in_backward() -> bool:
    """True if autograd is running backward in this thread."""
    return torch._C._current_graph_task_id() != -1


def is_transformed() -> bool:
    """True if a transform of torch.func is running in this thread."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Operations in here are plain ones, as if no transform was running."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack():
        yield
