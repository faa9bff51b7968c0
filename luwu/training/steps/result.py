"""Results, which `step()` returns: steps that are on their way to the store."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from luwu.base.errors import StepOrderError
from luwu.nic.threads import StepHandle
from luwu.training.base.progress import Attempt
from luwu.training.state.attached import Attachments


class StepResult:
    """One step; reading `applied` or `grad_norm` waits until all sums of the step are complete."""

    def __init__(
        self, number: int, complete: Callable[[], None], *, attempt: Attempt,
        attachments: Attachments,
    ) -> None:  # fmt: skip
        self.handle: StepHandle | None = None
        """Handle of the step, once it is committed; None while other optimizers are to step too."""
        self._complete = complete
        self._attempt, self._attachments = attempt, attachments
        self._verdict: tuple[bool, tuple[float, ...]] | None = None
        self.number = number
        """Counted from 0."""
        self.is_lost = False
        """The step was aborted before it was decided: nothing of it will be known."""
        self.loss: Any = None
        """Return value of the closure, if there was one."""

    @property
    def applied(self) -> bool:
        """False if the step was skipped because a gradient was not finite."""
        return self._read()[0]

    @property
    def grad_norm(self) -> float:
        """Norm of the mean gradient, before clipping."""
        return self._read()[1][0]

    def norm_found(self, call: int) -> float:
        """The norm that a call of `clip_grad_norm_` found; calls are counted from 0."""
        return self._read()[1][1 + call]

    def wait(self) -> None:
        """Return when the step is decided: from then on it cannot be lost."""
        handle = self._committed()
        with self._attempt():
            self._attachments.wait(self.number)  # what is attached to this step is part of it
        with self._attempt():
            handle.decision()

    def _read(self) -> tuple[bool, tuple[float, ...]]:
        handle = self._committed()
        if self._verdict is None:
            with self._attempt():
                self._verdict = handle.verdict()
        return self._verdict

    def _committed(self) -> StepHandle:
        """Of the step, which is committed now if it was not. Raises StepOrderError."""
        if self.handle is None and not self.is_lost:
            self._complete()
        if self.is_lost:
            raise StepOrderError(
                f"step {self.number} was lost before it was decided, so it has no result; replay "
                "it and read the result of the new step()"
            )
        assert self.handle is not None
        return self.handle

    def __repr__(self) -> str:
        if self._verdict is None:
            return f"StepResult(number={self.number})"
        applied, (grad_norm, *_) = self._verdict
        return f"StepResult(number={self.number}, applied={applied}, grad_norm={grad_norm:.6g})"


class Results:
    """The results of a session's steps, as far as anybody may still ask for them."""

    def __init__(self) -> None:
        self.last: StepResult | None = None
        """Result of the last step that was committed and not lost."""
        self._all: weakref.WeakSet[StepResult] = weakref.WeakSet()

    def expect(self, result: StepResult) -> None:
        """A step is about to be committed."""
        self._all.add(result)

    def lose(self, step: int) -> None:
        """The attempt was lost: `step` is computed again, and so is what came after it."""
        for result in list(self._all):
            if result.number >= step:
                result.is_lost = True
        if self.last is not None and self.last.is_lost:
            self.last = None

    def wait_for_last(self) -> None:
        """Return when the last step is decided."""
        if self.last is not None:
            self.last.wait()
