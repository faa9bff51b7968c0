"""Names of modules, parameters and dtypes, as the script and the layout know them."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

COMPILED: Final = "_orig_mod"
"""The name under which `torch.compile(module)` holds the module."""

_WRAPPERS = (COMPILED, "_checkpoint_wrapped_module")
"""Parts that torch.compile and its checkpoint wrapper put into names."""

ORIGINAL: Final = "luwu_original"
"""Attribute of a class that `fully_shard` made: the class that the module had before."""


def plain_name(name: str) -> str:
    """The full name of a module or parameter, without what torch's wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def class_name(module: nn.Module) -> str:
    """The name of a module's class as the script knows it."""
    kind = type(module)
    original: type = getattr(kind, ORIGINAL, kind)
    return original.__name__


def is_sharded(module: nn.Module) -> bool:
    """True if `fully_shard` was called on this module."""
    return hasattr(type(module), ORIGINAL)


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` of `torch.float32`."""
    return str(dtype).removeprefix("torch.")
