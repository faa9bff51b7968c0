"""The progress of a worker: the step that is computed, what of it is done, and its attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from luwu.base.errors import StepAborted

KEPT_STEPS: Final = 4
"""Steps whose inputs are remembered: those an abort may go back to, and one."""


class Progress:
    """See the module; one object for all steps of a session."""

    def __init__(self) -> None:
        self.step = 0
        """The step to compute next, or being computed."""
        self.parts = 0
        """Backwards of this step that are complete and pushed."""
        self.is_begun = False
        """Weights were asked for: the first ones can no longer be chosen."""
        self.is_resumed = False
        """The network had weights when we joined."""
        self.aborts_count = 0

    def join(self, step: int, *, is_resumed: bool) -> None:
        """The job goes on at this step."""
        self.step, self.is_resumed = step, is_resumed

    def begin(self) -> None:
        """Weights are asked for."""
        self.is_begun = True

    def end_part(self) -> None:
        """A backward of this step is complete and pushed."""
        self.parts += 1

    def go_to(self, step: int) -> None:
        """Compute this step next: from its begin, whatever was done of it before."""
        self.step, self.parts = step, 0

    def abort(self) -> None:
        """The attempt was lost."""
        self.aborts_count += 1


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
