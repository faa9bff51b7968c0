"""Results of steps, which `step()` returns before they are durable, and the clipping of gradients.

Clipping is by the global norm, on the optimizer node: the gradient is there, not here. Each call
acts on what those before it left, as in torch; its norm is that of the mean gradient over all ranks
and parameters as it then is, and known after `step()`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

from luwu.base.errors import ConfigError, StepOrderError
from luwu.base.limits import CLIPS_MAX
from luwu.nic.threads import StepHandle
from luwu.training.base.progress import Attempt
from luwu.training.state.attached import Attachments
from luwu.wire.description import NORM_TYPES
from luwu.wire.norms import Clip


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
        with self._attempt:
            self._attachments.wait(self.number)  # what is attached to this step is part of it
        with self._attempt:
            handle.decision()

    def _read(self) -> tuple[bool, tuple[float, ...]]:
        handle = self._committed()
        if self._verdict is None:
            with self._attempt:
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


class ClippedNorm:
    """The norm before this clip; a number as soon as `step()` has returned."""

    def __init__(self, step: int, call: int, clip: Clip, *, must_be_finite: bool) -> None:
        self.result: StepResult | None = None
        """Result of the step, once it is committed."""
        self.is_dropped = False
        """The step was dropped, so the norm will never be known."""
        self.step, self.clip = step, clip
        self._call, self._must_be_finite = call, must_be_finite

    def item(self) -> float:
        """The norm; waits until all sums of the step are complete."""
        if self.result is None:
            raise StepOrderError(
                f"the norm of step {self.step} will never be known: the step was dropped"
                if self.is_dropped
                else f"the norm of step {self.step} is known after step(): the ranks' gradients "
                "are summed in the network. Read it there, or from the result of step()"
            )
        return self.result.norm_found(self._call)

    def check(self) -> None:
        """Raises RuntimeError, as torch, if the norm had to be finite and is not."""
        if self._must_be_finite and not math.isfinite(norm := self.item()):
            raise RuntimeError(
                f"the {self.clip.norm_type:g}-norm of the gradient of step {self.step} is {norm}, "
                "so the step was left out and no weight has changed; with "
                "error_if_nonfinite=False training goes on after such a step"
            )

    def __float__(self) -> float:
        return self.item()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec)

    def __repr__(self) -> str:
        norm = "known after step()" if self.result is None else f"{self.item():.6g}"
        return f"ClippedNorm(step={self.step}, max_norm={self.clip.max_norm}, norm={norm})"


class Clipping:
    """The clipping of a session's steps."""

    def __init__(self) -> None:
        self._asked: list[ClippedNorm] = []
        """Norms asked for in this step, in their order."""

    @property
    def clips(self) -> tuple[Clip, ...]:
        """Those that were asked for in this step."""
        return tuple(each.clip for each in self._asked)

    def ask(self, step: int, clip: Clip, *, must_be_finite: bool) -> ClippedNorm:
        """Clip the gradient of the coming step. Raises ConfigError for one call too many."""
        if len(self._asked) == CLIPS_MAX:
            raise ConfigError(
                f"clip_grad_norm_ was called {CLIPS_MAX} times in step {step}, which is the limit "
                "of calls per step; keep the norm that a call returns instead of asking again"
            )
        norm = ClippedNorm(step, len(self._asked), clip, must_be_finite=must_be_finite)
        self._asked.append(norm)
        return norm

    def resolve(self, result: StepResult) -> list[ClippedNorm]:
        """The step is committed: what was asked for it."""
        asked, self._asked = self._asked, []
        for each in asked:
            each.result = result
        return asked

    def drop(self) -> None:
        """Forget the norms that were asked for in this step."""
        for each in self._asked:
            each.is_dropped = True
        self._asked = []


def checked_max_norm(max_norm: float) -> float:
    """The limit as a float. Raises ConfigError unless it is above 0 (infinity: only measure)."""
    value = float(max_norm)
    if math.isnan(value) or value <= 0:
        raise ConfigError(f"max_norm must be above 0, got {max_norm!r}")
    return value


def checked_norm_type(norm_type: float | str) -> float:
    """The norm to clip by. Raises ConfigError unless it is 1, 2 or infinity."""
    value = float(norm_type)
    if value not in NORM_TYPES:
        raise ConfigError(
            f"norm_type={norm_type!r}: gradients are clipped by norm 1, 2 or infinity"
        )
    return value
