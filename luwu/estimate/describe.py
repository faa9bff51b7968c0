"""The process that runs a script without weights until it would join its job (`script.py`).

    python -m luwu.estimate.describe SETTINGS SCRIPT ...

Parameters lose their values as modules get them (`torch`'s device `meta`), so the process takes the
memory of the largest one. All else is as in a run. `luwu.init` gets a NIC that joins nothing: with
the last optimizer, or the first forward without one, it writes the job, and the script ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from luwu.base.events import Recorder
from luwu.launch.entry import run_script
from luwu.training.script import run
from luwu.wire.description import Description

META = torch.device("meta")
_STAND_IN = "luwu_without_values"


class Described(BaseException):
    """The job is written; no `except Exception` of a script may keep it from ending."""


class DescribingNic:
    """A NIC of rank 0 that never joins."""

    rank, optimizer_nodes, is_closed = 0, 1, False

    def __init__(self, settings: dict[str, Any]) -> None:
        """`settings`: its other attributes."""
        vars(self).update(settings)
        self.recorder = Recorder(role="worker", printed=None)
        self.cells = SimpleNamespace()

    def join(self, description: Description) -> None:
        """The job is written. Raises Described."""
        raise Described

    def close(self) -> None:
        """Nothing is open."""


def without_values(parameter: nn.Parameter) -> nn.Parameter:
    """The same without storage; where a parameter is in several modules, one for all of them."""
    made: nn.Parameter | None = getattr(parameter, _STAND_IN, None)
    if made is None:
        made = nn.Parameter(parameter.detach().to(META), requires_grad=parameter.requires_grad)
        made.__dict__.update(parameter.__dict__)
        setattr(parameter, _STAND_IN, made)
    return made


def drop_values() -> None:
    """From now on, in this process, parameters of modules have no storage."""
    register, apply = nn.Module.register_parameter, nn.Module._apply
    normal_ = torch.Tensor.normal_

    def register_parameter(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        is_plain = type(param) is nn.Parameter and not param.is_meta
        register(self, name, without_values(param) if is_plain and param is not None else param)

    def _apply(self: nn.Module, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> nn.Module:
        def converted(tensor: torch.Tensor) -> Any:
            """As `fn` does it; what has no storage changes its dtype alone."""
            if not tensor.is_meta:
                return fn(tensor)
            return tensor.to(fn(torch.empty(0, dtype=tensor.dtype)).dtype)

        return apply(self, converted, *args, **kwargs)

    # Without storage there is nothing to draw; torch would import its compiler, which takes 2 s.
    torch.Tensor.normal_ = lambda self, *args, **more: (  # type: ignore[method-assign]
        self if self.is_meta else normal_(self, *args, **more)
    )
    nn.Module.register_parameter = register_parameter  # type: ignore[method-assign]
    nn.Module._apply = _apply  # type: ignore[method-assign]


def main(arguments: list[str]) -> int:
    """Run the script until it would join; the exit code."""
    settings, *script = arguments
    run.offer(DescribingNic(json.loads(settings)))  # type: ignore[arg-type]
    drop_values()
    try:
        run_script(script)
    except Described:
        sys.stdout.flush()
        os._exit(0)  # threads of the script, and what it does at its end, have no part in this
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
