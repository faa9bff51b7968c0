"""What `step()` returns: a step that is on its way to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from luwu.base.errors import StepOrderError
from luwu.training.interface import StepHandle

if TYPE_CHECKING:
    from luwu.training.session import Session


KEPT_STEPS = 4
"""What a step was made from is remembered of so many: those an abort may go back to, and one."""


class StepResult:
    """One step; reading `applied` or `grad_norm` waits until all sums of the step are complete."""

    def __init__(self, session: Session, number: int, handle: StepHandle) -> None:
        self._session = session
        self._handle = handle
        self._verdict: tuple[bool, float] | None = None
        self.number = number
        """Counted from 0."""
        self.is_lost = False
        """The step was aborted before it was decided: nothing of it will be known."""
        self.loss: Any = None
        """What the closure returned, if there was one."""

    @property
    def applied(self) -> bool:
        """False if the step was skipped because a gradient was not finite."""
        return self._read()[0]

    @property
    def grad_norm(self) -> float:
        """Norm of the mean gradient, before clipping."""
        return self._read()[1]

    def wait(self) -> None:
        """Return when the step is decided: from then on it cannot be lost."""
        self._check_not_lost()
        self._session.begin_step()  # what is attached to this step is part of it
        with self._session.attempt():
            self._handle.settled()

    def _read(self) -> tuple[bool, float]:
        self._check_not_lost()
        if self._verdict is None:
            with self._session.attempt():
                self._verdict = self._handle.verdict()
        return self._verdict

    def _check_not_lost(self) -> None:
        if self.is_lost:
            raise StepOrderError(
                f"step {self.number} was lost before it was decided, so it has no result; replay "
                "it and read the result of the new step()"
            )

    def __repr__(self) -> str:
        if self._verdict is None:
            return f"StepResult(number={self.number})"
        applied, grad_norm = self._verdict
        return f"StepResult(number={self.number}, applied={applied}, grad_norm={grad_norm:.6g})"
