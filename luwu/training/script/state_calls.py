"""Calls by which a script puts first weights and attachments into the state."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from luwu.base.errors import ConfigError
from luwu.training.script import run
from luwu.training.script.module import LuwuModule
from luwu.training.script.session import Session
from luwu.training.state.first_weights import Pretrained, Rename


def attach(name: str, thing: Any, *, per_rank: bool = False, late: bool | None = None) -> None:
    """Keep the state of a Python object with every step.

    The state is taken at `step()`, becomes part of that step, and is restored when the run is
    resumed and before a lost step is computed again. Attach right before the training loop, on all
    ranks alike.

    Args:
        name: Name of the attachment in the state; unique within the job.
        thing: A learning rate scheduler, a `torch.Generator`, a module (its persistent buffers), a
            dict that is changed in place, or any object with `state_dict()` and
            `load_state_dict()`. States consist of plain values, tensors and arrays.
        per_rank: True if the state differs by rank. A rank that is new, or was left out, then keeps
            its own state; otherwise it takes that of the first rank of the last step.
        late: True if the object changes after `step()`: its state is taken when the next training
            forward begins, or the step is waited for. By default true for schedulers only.

    Raises:
        StepOrderError: After the first forward.
        ConfigError: If the name is taken, or the object has no state that can be kept.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.AdamW(model.parameters(), lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
        >>> cursor = {"sample": 0}
        >>> luwu.attach("scheduler", scheduler)
        >>> luwu.attach("cursor", cursor)
        >>> luwu.attach("random", luwu.random_state(), per_rank=True)
    """
    run.session().attachments.attach(name, thing, per_rank=per_rank, late=late)


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
    _session_before_training(model, "init_weights").first_weights.initialisers[model] = fn


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
    session = _session_before_training(model, "load_pretrained")
    found = Pretrained(Path(directory), rename or (lambda name: name), model)
    found.fill_buffers(session.device)
    session.first_weights.files[model] = found


def _session_before_training(model: nn.Module, call: str) -> Session:
    if not isinstance(model, LuwuModule):
        raise ConfigError(f"{call}: call luwu.fully_shard(model) first")
    if model.luwu_session.is_final:
        raise ConfigError(f"{call} was called after the optimizer was made; call it before")
    return model.luwu_session
