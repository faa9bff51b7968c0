"""Activations out of core: what a module's forward saves for backward waits in memory or on disk.

    luwu.offload_activations(model, memory_budget="256MiB", directory="/scratch")

It goes on the module that calls `torch.utils.checkpoint`, usually the whole model: then all that is
saved are the inputs of the checkpointed blocks. (A reentrant checkpoint saves them with
`save_for_backward`, the other one as a saved tensor of its frame, both before their own hooks are
set; so the hooks around get them.) Without checkpoints it is every activation, which is a lot.

What a repeated forward saves within backward is used at once, and is left alone. Tensors that a
non-reentrant checkpoint gets by keyword, and what a compiled graph keeps within itself, never come
to the hooks: they stay in memory.

It makes memory smaller and steps longer: what is beyond the budget is written once and read once a
step. Reads are ahead of their use and writes behind the compute, so it costs time where the disk is
slower than the compute between two checkpoints, or has no core to itself.
"""

from __future__ import annotations

import functools
import tempfile
import threading
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from luwu.activations.saved_tensors import SavedTensors
from luwu.activations.store import ActivationStats, ActivationStore
from luwu.base.errors import ConfigError
from luwu.base.file_system import memory_kind
from luwu.base.quantities import parse_bytes
from luwu.training.base.autograd import in_backward
from luwu.training.base.names import class_name
from luwu.training.base.uncompiled import uncompiled
from luwu.training.devices.storages import Storages

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_NAME = "luwu_offload"
"""Name of a module's attribute."""


def offload_activations(
    module: ModuleT, *, memory_budget: str | int = "256MiB",
    directory: str | Path | None = None, min_bytes: str | int = "64KiB",
) -> ModuleT:  # fmt: skip
    """Move what a module saves for backward out of the way: to memory up to a budget, then to disk.

    Call it on the module that calls `torch.utils.checkpoint`, usually the whole model. Values keep
    their bits. It works before or after `luwu.fully_shard`, and without it.

    Args:
        module: The module; it may be called as before.
        memory_budget: Bytes, or text such as `"256MiB"`, that may wait in memory over all forwards;
            what was saved first goes to disk beyond it.
        directory: Directory on a disk, for a file without a name; by default that of temporary
            files.
        min_bytes: Tensors smaller than this stay where they are.

    Returns:
        The module.

    Raises:
        ConfigError: If it was called on the module before, a size is invalid, or the directory for
            temporary files is in memory.
        TypeError: If `module` is not a module.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
        >>> model = luwu.offload_activations(model, memory_budget=0, directory=".", min_bytes=0)
        >>> model(torch.ones(8, 64)).sum().backward()
        >>> luwu.activation_stats(model).saved_bytes > 0
        True
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"offload_activations takes a module, got {type(module).__name__}")
    if _NAME in module.__dict__:
        raise ConfigError(f"offload_activations was called twice on the same {class_name(module)}")
    offload = Offload(
        _bytes(memory_budget, "memory_budget"),
        _default_directory() if directory is None else Path(directory),
        _bytes(min_bytes, "min_bytes"),
    )
    module.__dict__[_NAME] = offload
    module.register_forward_pre_hook(offload.enter, prepend=True)
    module.register_forward_hook(offload.leave, always_call=True)
    return module


def activation_stats(module: nn.Module) -> ActivationStats:
    """Return counts of what `offload_activations` did for this module.

    Args:
        module: A module that `offload_activations` was called on.

    Returns:
        An object with byte counts (`saved_bytes`, `written_bytes`, `read_bytes`,
        `waiting_bytes_peak`, ...), the number of waits for the disk (`waits_count`) and their
        seconds (`waited_s`).

    Raises:
        ConfigError: If `offload_activations` was not called on the module.

    Examples:
        >>> model = luwu.offload_activations(torch.nn.Linear(64, 64), directory=".", min_bytes=0)
        >>> model(torch.ones(8, 64)).sum().backward()
        >>> stats = luwu.activation_stats(model)
        >>> stats.waits_count, stats.written_bytes  # all of it fitted into the budget
        (0, 0)
    """
    offload: Offload | None = module.__dict__.get(_NAME)
    if offload is None:
        raise ConfigError(
            f"activation_stats: call luwu.offload_activations on this {class_name(module)} first"
        )
    return offload.store.stats()


class Offload:
    """The store of a module, and the hooks that surround its forward."""

    def __init__(self, memory_budget: int, directory: Path, min_bytes: int) -> None:
        self._settings = (memory_budget, directory, min_bytes)
        self.store = ActivationStore(memory_budget=memory_budget, directory=directory)
        self._saved = SavedTensors(self.store, min_bytes=min_bytes)
        self._here = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the module has a store of its own."""
        return Offload, self._settings

    @uncompiled
    def enter(self, module: nn.Module, args: Any) -> None:
        """A forward begins."""
        context: saved_tensors_hooks | None = None
        if not in_backward():
            _check_outside_checkpoint(module)
            kept = Storages(
                tensor
                for tensor in (*module.parameters(), *module.buffers())
                if type(tensor) in (Tensor, nn.Parameter)
            )
            pack = functools.partial(self._saved.pack, kept)
            context = saved_tensors_hooks(pack, self._saved.unpack)
            context.__enter__()
        self._contexts().append(context)

    @uncompiled
    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """A forward ended, well or not."""
        contexts = self._contexts()
        if not contexts:
            return  # another hook failed before `enter`
        context = contexts.pop()
        if context is not None:
            context.__exit__()

    def _contexts(self) -> list[saved_tensors_hooks | None]:
        """The contexts of the forwards under way in this thread."""
        contexts: list[saved_tensors_hooks | None] | None = getattr(self._here, "contexts", None)
        if contexts is None:
            contexts = self._here.contexts = []
        return contexts


def _check_outside_checkpoint(module: nn.Module) -> None:
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint":
        raise ConfigError(
            f"offload_activations: this {class_name(module)} runs inside of a checkpoint, which "
            "saves only its inputs, and those outside of it; call offload_activations on the "
            "module that calls the checkpoint, usually the whole model"
        )


def _bytes(size: Any, name: str) -> int:
    if isinstance(size, str):
        return parse_bytes(size, name=name)
    if type(size) is not int or size < 0:
        raise ConfigError(f"{name}={size!r}: give a number of bytes from 0, or a text as '256MiB'")
    return size


def _default_directory() -> Path:
    directory = Path(tempfile.gettempdir())
    kind = memory_kind(directory)
    if kind is not None:
        raise ConfigError(
            f"offload_activations: {directory}, where temporary files go, is memory ({kind}), so "
            "nothing would be gained; name a directory on a disk with directory="
        )
    return directory
