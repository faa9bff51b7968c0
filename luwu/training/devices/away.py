"""The error of a backward that reads weights which are not here; it names their unit.

Weights that are away have a version that no graph has saved (`weights.py`), so autograd refuses to
read them, at the operation that would. Its error gives the version alone; the unit follows from it.
"""

from __future__ import annotations

import functools
import itertools
import re
import weakref
from typing import Any, Final, Protocol

import torch

from luwu.base.errors import LuwuError, StepOrderError

FIRST_AWAY: Final = 1 << 31
"""Versions from here on are of weights that are away. Autograd counts in 32 bits."""
_FOUND: Final = re.compile(r"is at version (\d+)")


class Named(Protocol):
    """Weights that may be away."""

    name: str
    """The name of their unit."""


_weights: Final[weakref.WeakValueDictionary[int, Named]] = weakref.WeakValueDictionary()
_versions: Final = itertools.count(FIRST_AWAY)


def version_of(weights: Named) -> int:
    """The version of these weights while they are away; of no others."""
    version = next(_versions)
    _weights[version] = weights
    return version


@functools.cache
def name_units_in_errors() -> None:
    """Let backwards of this process raise StepOrderError where they read weights that are away."""
    autograd: Any = torch.autograd  # `backward` and `grad` both call this
    run = autograd._engine_run_backward

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except (RuntimeError, LuwuError) as error:
            found = _FOUND.search(str(error))
            weights = None if found is None else _weights.get(int(found[1]))
            if weights is None:
                raise
            raise StepOrderError(
                f"backward reached unit {weights.name} past its outputs, while its weights were "
                "away: through a loss or an activation that its module keeps, or that a hook, an "
                "object or a transform of torch.func took. Return from the module's forward what "
                "backward is to come from; or keep its weights in this process, by "
                "reshard_after_forward=False of fully_shard and set_reshard_after_backward(False)"
            ) from error

    autograd._engine_run_backward = run_backward
