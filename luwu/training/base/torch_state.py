"""What torch does around a call in this thread: autograd, a transform of torch.func, the compiler.

While a transform runs, every tensor that an operation makes is wrapped, so weights cannot be
received in it: that is done outside. A unit that ran in a transform keeps its weights until the
next forward outside of one, or the end of the step, since the backward of `torch.func.grad` is not
seen by hooks. Transforms are over inputs; gradients of weights come from `loss.backward()` over a
forward outside of any.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

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


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def uncompiled(function: FunctionT) -> FunctionT:
    """The function as `torch.compiler.disable` makes it: torch's compiler leaves it alone.

    `disable` imports the compiler, which takes more than a second. Here it is asked for at the
    first call after the script has imported it; before, there is nothing to leave alone.
    """
    disabled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if disabled is None:
            if "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            disabled = torch.compiler.disable(function)
            # Else the compiler looks into this very frame, for each kind of module anew, until it
            # gives up with a warning that points here.
            torch._dynamo.decorators.skip(call)
        return disabled(*args, **kwargs)

    # What the compiler looks for in a function that it comes upon while it traces another one.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return cast("FunctionT", call)
