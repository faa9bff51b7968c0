"""`luwu.log`: numbers of a step that a script wants to see while it trains."""

from __future__ import annotations

import atexit
import os
from typing import Any, Final

from torch import Tensor

from luwu.base.errors import ConfigError
from luwu.base.events import SCALARS
from luwu.base.own import needs
from luwu.training.script import run

TENSORBOARD: Final = "LUWU_TENSORBOARD"
"""The directory for TensorBoard's event files; `--tensorboard` sets it."""
FLUSH_S: Final = 5

_writers: dict[str, Any] = {}


def log(**scalars: float | Tensor) -> None:
    """Record numbers of the step whose backward ran last, such as `loss`.

    `luwu status`, the live page and the report show those of rank 0; with `--tensorboard DIR` rank
    0 also writes them to TensorBoard's event files. All ranks may call it, or only rank 0.

    Args:
        **scalars: numbers or tensors of one element, by name; units are the caller's. A tensor on a
            GPU is copied to the host, which waits for it.

    Raises:
        ConfigError: a value is not one number.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> loss = model(torch.ones(8, 4)).square().mean()
        >>> loss.backward()
        >>> luwu.log(loss=loss, lr=optimizer.param_groups[0]["lr"])
    """
    session = run.session()
    values = {name: _number(name, value) for name, value in scalars.items()}
    step = session.progress.step - (0 if session.progress.parts else 1)
    session.nic.recorder.event(SCALARS, level="DEBUG", step=step, values=values)
    directory = os.environ.get(TENSORBOARD)
    if directory and session.rank == 0:
        writer = _writer(directory)
        for name, number in values.items():
            writer.add_scalar(name, number, step)


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as exc:
        shape = getattr(value, "shape", None)
        found = type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
        raise ConfigError(
            f"luwu.log({name}=...) takes one number, got a {found}; reduce it to one first"
        ) from exc


def _writer(directory: str) -> Any:
    """The process's writer; its file is whole a few seconds after each number, and at the end."""
    if directory not in _writers:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as exc:
            raise ConfigError(
                f"--tensorboard needs the package tensorboard; {needs('tensorboard')}", code="E208"
            ) from exc
        _writers[directory] = SummaryWriter(directory, flush_secs=FLUSH_S)
        atexit.register(_writers[directory].close)
    return _writers[directory]
