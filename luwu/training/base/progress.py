"""The progress of a worker: the step that is computed, and what of it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from luwu.base.errors import StepAborted

KEPT_STEPS: Final = 4
"""Steps whose inputs are remembered: those an abort may go back to, and one."""


@dataclass(slots=True)
class Progress:
    """See the module; one object for all steps of a session, whose parts write to it."""

    step: int = 0
    """The step to compute next, or being computed."""
    parts: int = 0
    """Backwards of this step that are complete and pushed."""
    is_begun: bool = False
    """Weights were asked for: the first ones can no longer be chosen."""
    is_resumed: bool = False
    """The network had weights when we joined."""
    aborts_count: int = 0
    """Attempts that were lost."""
    is_streaming: bool = False
    """The order of work: gradients are applied behind the backward."""
    is_trained: bool = True
    """False if there is no optimizer: the model was used before one was made."""


class Attempt:
    """Used around whatever may raise StepAborted: what the lost attempt left is dropped before the
    error goes on to the script."""

    def __init__(self, drop: Callable[[StepAborted], StepAborted]) -> None:
        """`drop` returns the latest error, if another attempt was lost meanwhile."""
        self._drop = drop

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, StepAborted):
            latest = self._drop(error)
            if latest is not error:
                raise latest from error
