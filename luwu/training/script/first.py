"""Sources of first weights that a script names: a function that makes them, or files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from torch import nn

from luwu.base.errors import ConfigError
from luwu.training.script.module import LuwuModule
from luwu.training.state.pretrained import Pretrained, Rename


def init_weights(model: nn.Module, fn: Callable[[nn.Module], object]) -> None:
    """Fill the model's first weights with a function, one unit at a time.

    For models that were made on `meta` and need not fit into a worker. A run that resumes a state
    has weights already; then the function fills buffers only.

    Args:
        model: The module that `fully_shard` was called on last.
        fn: Called as `fn(module)` for every module that directly owns parameters or buffers; fills
            them in place. Seed its random numbers by module rather than by the order of calls.

    Raises:
        ConfigError: If the model is not sharded, or the optimizer was made already.

    Examples:
        >>> session = luwu.init_local()
        >>> with torch.device("meta"):
        ...     model = torch.nn.Linear(4, 2)
        >>> model = luwu.fully_shard(model)
        >>> def ones(module):
        ...     for parameter in module.parameters(recurse=False):
        ...         torch.nn.init.ones_(parameter)
        >>> luwu.init_weights(model, ones)
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> model(torch.ones(1, 4)).tolist()
        [[5.0, 5.0]]
    """
    if not isinstance(model, LuwuModule):
        raise ConfigError("init_weights: call luwu.fully_shard(model) first")
    session = model.luwu_session
    if session.is_final:
        raise ConfigError("init_weights was called after the optimizer was made; call it before")
    session.first_weights.sources.fill(model, fn)


def load_pretrained(
    model: nn.Module, directory: str | os.PathLike[str], rename: Rename | None = None
) -> None:
    """Take the model's first weights from safetensors files, one unit at a time.

    Rank 0 reads the weights; other ranks need the files only for buffers. Call it before the
    optimizer is made. A run that resumes a state has weights, and reads none.

    Args:
        model: The module that `fully_shard` was called on last.
        directory: Directory with `model.safetensors`, or with shards and their index.
        rename: Returns the name in the files for a parameter or buffer of the model, or None if it
            is not there; that one is initialised as without this call.

    Raises:
        ConfigError: If tensors are missing, left over or of another shape; the message lists them.
        DamagedFileError: If a file is cut short or malformed.

    Examples:
        >>> from safetensors.torch import save_file
        >>> save_file({"fc.weight": torch.eye(2), "fc.bias": torch.zeros(2)}, "model.safetensors")
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(2, 2))
        >>> luwu.load_pretrained(model, ".", rename=lambda name: "fc." + name)
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> model(torch.ones(1, 2)).tolist()
        [[1.0, 1.0]]
    """
    if not isinstance(model, LuwuModule):
        raise ConfigError("load_pretrained: call luwu.fully_shard(model) first")
    session = model.luwu_session
    if session.is_final:
        raise ConfigError("load_pretrained was called after the optimizer was made; call it before")
    found = Pretrained(Path(directory), rename or (lambda name: name), model)
    found.fill_buffers(session.device)
    session.first_weights.sources.read(model, found)
