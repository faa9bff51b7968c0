"""Loss scaling: float16 gradients are kept above zero by a factor that the node divides out again.

    loss                 times the scale of the step          `optimizer.scale(loss)`
    every push           its weight times the scale           the node divides by all weights
    a sum is not finite  the node skips the step              the scale is halved for the next
    `growth_interval` steps that were applied                 it is doubled

The scale of a step follows from the verdicts of the steps before it, so all ranks have the same
without a word. It travels with the hyper-parameters, where a difference is rejected. The verdict of
step t is known when weights of step t + 1 are used: to ask for the scale waits for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from luwu.base.errors import ConfigError, StepOrderError
from luwu.training.base.progress import KEPT_STEPS, Progress
from luwu.training.steps.result import Results

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicLossScale:
    """A rule for the loss scale of float16 training, as that of `torch.amp.GradScaler`.

    A step whose gradient is not finite is skipped and multiplies the scale by `backoff_factor`;
    `growth_interval` applied steps in a row multiply it by `growth_factor`. The scale is the same
    on all ranks and is kept with the state.

    Args:
        init_scale: Scale of the first step; above 0.
        growth_factor: At least 1.
        backoff_factor: Above 0 and at most 1.
        growth_interval: Applied steps after which the scale grows; at least 1.

    Raises:
        ConfigError: If a number is out of its range or not finite.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> rule = luwu.DynamicLossScale(init_scale=1024.0, growth_interval=100)
        >>> optimizer = luwu.optim.AdamW(model.parameters(), loss_scale=rule)
        >>> loss = model(torch.ones(8, 4)).square().mean()
        >>> scaled = optimizer.scale(loss)
        >>> round((scaled / loss).item())
        1024
        >>> scaled.backward()
        >>> optimizer.step().applied
        True
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        for name in ("init_scale", "growth_factor", "backoff_factor"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"loss_scale: {name} must be above 0 and finite, got {value!r}")
        if self.growth_factor < 1 or self.backoff_factor > 1 or self.growth_interval < 1:
            raise ConfigError(
                "loss_scale: growth_factor must be at least 1, backoff_factor at most 1 and "
                f"growth_interval at least 1, got {self}"
            )


UNSCALED: Final = DynamicLossScale(init_scale=1.0, growth_factor=1.0, backoff_factor=1.0)


def checked_loss_scale(given: float | str | DynamicLossScale | None) -> DynamicLossScale:
    """The rule that an optimizer's `loss_scale=` means. Raises ConfigError."""
    if isinstance(given, DynamicLossScale):
        return given
    if given == "dynamic":
        return DynamicLossScale()
    if isinstance(given, str):
        raise ConfigError(f"loss_scale={given!r}: give a number, 'dynamic' or a DynamicLossScale")
    return UNSCALED if given is None else replace(UNSCALED, init_scale=float(given))


class LossScale:
    """The scale of each step of a session."""

    def __init__(self, progress: Progress, results: Results) -> None:
        self._progress, self._results = progress, results
        self.rule = UNSCALED
        """The rule of the optimizer, once it is made."""
        self._states: dict[int, tuple[float, int]] = {}
        """Step -> its scale, and the number of steps applied before it with this scale."""
        self._scaled_step = -1
        """The step whose loss was multiplied."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times the scale of this step."""
        self._scaled_step = self._progress.step
        return loss if self._is_one else loss * self.value

    def check_used(self) -> None:
        """A backward begins. Raises StepOrderError if its loss cannot have been scaled."""
        if not self._is_one and self._scaled_step != self._progress.step:
            raise StepOrderError(
                f"backward of step {self._progress.step} without a scaled loss, but the optimizer "
                f"was made with loss_scale={self.value:g}: its gradient would be divided by it for "
                "nothing. Call optimizer.scale(loss).backward()"
            )

    @property
    def _is_one(self) -> bool:
        return not self.is_dynamic and self.rule.init_scale == 1

    @property
    def is_dynamic(self) -> bool:
        """True if it ever changes."""
        return self.rule.growth_factor != 1 or self.rule.backoff_factor != 1

    @property
    def value(self) -> float:
        """The scale of the step that is being computed."""
        return self._state(self._progress.step)[0]

    def state_dict(self) -> dict[str, float]:
        """The state of the step to compute next."""
        scale, applied_count = self._state(self._progress.step)
        return {"scale": scale, "applied_count": applied_count}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from what `state_dict` gave."""
        self._states = {self._progress.step: (state["scale"], int(state["applied_count"]))}

    def restart(self, step: int) -> None:
        """`step` is computed again: what came of it is void."""
        self._states = {number: s for number, s in self._states.items() if number <= step}

    def _state(self, step: int) -> tuple[float, int]:
        if not self.is_dynamic or not self._states:
            self._states = {step: (self.rule.init_scale, 0)}
        latest = max(self._states)
        if latest < step:
            result = self._results.last
            assert result is not None
            assert result.number == latest == step - 1, "a step is made from the one before"
            self._states[step] = self._next(
                self._states[latest], applied=result.applied, norm=result.grad_norm
            )
            self._states.pop(step - KEPT_STEPS, None)
        return self._states[step]

    def _next(self, state: tuple[float, int], *, applied: bool, norm: float) -> tuple[float, int]:
        scale, applied_count = state
        if not applied and not math.isfinite(norm):
            return scale * self.rule.backoff_factor, 0
        if not applied:
            return state  # left out by `skip_step()`, whatever the scale
        if applied_count + 1 < self.rule.growth_interval:
            return scale, applied_count + 1
        grown = scale * self.rule.growth_factor
        return (grown if math.isfinite(grown) else scale), 0
