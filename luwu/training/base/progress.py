"""The progress of a worker: the step that is computed, what of it is done, and its attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """The attempt that is under way: when the network gives it up, what it left is dropped. Used
    around whatever may raise StepAborted."""

    def __init__(self, drop: Callable[[StepAborted], StepAborted]) -> None:
        """`drop` forgets everything of the attempt; it returns the newest abort."""
        self._drop = drop

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Drop what the attempt left before StepAborted goes on to the script."""
        try:
            yield
        except StepAborted as error:
            latest = self._drop(error)
            if latest is not error:
                raise latest from error
            raise
