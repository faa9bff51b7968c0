"""The attempt that is under way: when the network gives it up, what it left here is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from luwu.base.errors import StepAborted


class Attempt:
    """See the module; used around whatever may raise StepAborted."""

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
