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
    """Fill the model's first weights with `fn(module)`, unit by unit, when they are needed.

    `fn` is called for every module that directly owns parameters, and fills those in place. If the
    run continues from a state that has weights, it is not called (except for buffers:
    see `state/initialise.py`).
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
    """Take the model's first weights from `directory`: `model.safetensors`, or shards and an index.

    `rename` gives the name in the files of each of our parameters and buffers, or None if it is not
    there. Called before the optimizer is made. Rank 0 reads the weights, when they are needed; only
    for buffers the other ranks need the files too.
    Raises: ConfigError, listing tensors that are missing, left over or of another shape.
    """
    if not isinstance(model, LuwuModule):
        raise ConfigError("load_pretrained: call luwu.fully_shard(model) first")
    session = model.luwu_session
    if session.is_final:
        raise ConfigError("load_pretrained was called after the optimizer was made; call it before")
    found = Pretrained(Path(directory), rename or (lambda name: name), model)
    found.fill_buffers(session.device)
    session.first_weights.sources.read(model, found)
