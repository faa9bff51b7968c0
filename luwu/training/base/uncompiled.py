"""Functions that torch's compiler leaves alone, at no cost to those who do not compile.

`torch.compiler.disable` imports the compiler, which takes more than a second. Here it is asked for
at the first call after the script has imported it; before, there is nothing to leave alone.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def uncompiled(function: FunctionT) -> FunctionT:
    """The function as `torch.compiler.disable` makes it, made when that means something."""
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
