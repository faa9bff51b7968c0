"""Names of modules, parameters, buffers and dtypes, as the script and the layout know them."""

from __future__ import annotations

from typing import Final, NamedTuple

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


class Entry(NamedTuple):
    """A parameter or buffer of a module, as a state dict has it."""

    module: nn.Module
    name: str
    full_name: str

    @property
    def value(self) -> torch.Tensor:
        """What the module has there now."""
        found = self.module._parameters.get(self.name, self.module._buffers.get(self.name))
        assert found is not None
        return found

    def set(self, value: torch.Tensor, device: torch.device) -> None:
        """Give it this value; a buffer on `meta` is made on the device."""
        into = self.value
        if into.is_meta:
            made = value.to(device=device, dtype=into.dtype, copy=True)
            self.module._buffers[self.name] = made
        else:
            into.detach().copy_(value)


def buffers_kept(prefix: str, module: nn.Module) -> list[Entry]:
    """The module's own buffers that a state dict has; `prefix`: its full name."""
    return [
        Entry(module, name, f"{prefix}.{name}" if prefix else name)
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]


def persistent_buffers(model: nn.Module) -> list[Entry]:
    """Those of all its modules."""
    return [each for named in model.named_modules() for each in buffers_kept(*named)]


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` of `torch.float32`."""
    return str(dtype).removeprefix("torch.")
