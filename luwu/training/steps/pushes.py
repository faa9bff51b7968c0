"""Gradients on their way out, as extents; `backward.py` decides when a unit's gradient is final."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from luwu.nic.memory import ExtentGradient
from luwu.nic.threads import Handle, Ready
from luwu.training.base.interface import Nic
from luwu.training.base.names import dtype_name
from luwu.training.base.progress import KEPT_STEPS, Attempt, Progress
from luwu.training.devices.device import Device, write_unit
from luwu.training.devices.gradients import ExtentPlan, gradient_plan
from luwu.training.steps.loss_scale import LossScale
from luwu.training.units.model import Model
from luwu.training.units.unit import Unit


class Pushes:
    """See the module; one object for all units of a session."""

    def __init__(
        self, nic: Nic, device: Device, *, progress: Progress, attempt: Attempt,
        loss_scale: LossScale,
    ) -> None:  # fmt: skip
        self._nic, self._device = nic, device
        self._progress, self._attempt, self._loss_scale = progress, attempt, loss_scale
        self.gradient_weight = 1.0
        """Weight of this rank's gradient in a step."""
        self._plans: list[tuple[ExtentPlan, ...]] = []
        """Plans of extents by unit."""
        self._handles: list[Handle] = []
        """Handles of this step."""

    def start(self, model: Model) -> None:
        """The layout is known."""
        self._plans = [
            gradient_plan(model.layout, unit.index, unit.push_dtype) for unit in model.units
        ]
        self._device.plan(self._plans)

    def push(self, unit: Unit, gradients: Sequence[torch.Tensor | None] | None) -> bool:
        """Send a unit's gradients; False if it has none. None: they are kept, nothing is sent."""
        if gradients is None:
            return False
        if all(gradient is None for gradient in gradients):
            self._push(unit, None)
            return False
        with self._attempt():
            plans = self._plans[unit.index]
            for group, ready in write_unit(self._device, plans, gradients, unit.push_dtype):
                self._push(unit, group, ready)
        return True

    def take(self) -> list[Handle]:
        """The step is committed or dropped: what was pushed in it."""
        handles, self._handles = self._handles, []
        return handles

    def _push(
        self, unit: Unit, group: list[ExtentGradient] | None, ready: Ready | None = None
    ) -> None:
        with self._attempt():
            handle = self._nic.push(
                self._progress.step,
                self._progress.parts,
                unit.index,
                group,
                dtype_name(unit.push_dtype),
                last=self._progress.is_streaming,
                weight=self._weight(unit),
                ready=ready,
            )
        self._handles.append(handle)

    def _weight(self, unit: Unit) -> float:
        """Its share of what the node divides the sum of all ranks by."""
        factor, ranks = unit.divide_factor, self._nic.world_size
        weight = self.gradient_weight if factor is None else factor / ranks
        return weight * self._loss_scale.value


class ZeroedGradients:
    """Parameters whose gradient counts as 0 where a step leaves none, and which those were as each
    step began: `zero_grad(set_to_none=False)`.

    In torch `.grad` outlives a step: such a call sets to 0 what is there, so that decay and
    momentum move a parameter on that the next steps do not use. Here gradients are gone after their
    backward, so units remember which parameters torch would hold one of, and their pushes have
    zeros for these.
    """

    def __init__(self) -> None:
        self._begun: dict[int, list[tuple[frozenset[int], frozenset[int]]]] = {}

    def begin(self, step: int, units: Sequence[Unit]) -> None:
        """A backward of this step begins; only its first one counts."""
        if step not in self._begun:
            self._begun[step] = [(unit.held, unit.zeroed) for unit in units]
            self._begun.pop(step - KEPT_STEPS, None)

    def zero(self, units: Sequence[Unit], *, set_to_none: bool) -> None:
        """The script calls `zero_grad`."""
        for unit in units:
            if set_to_none:
                unit.held = unit.zeroed = frozenset()
            else:
                unit.zeroed = unit.held

    def restart(self, step: int, units: Sequence[Unit]) -> None:
        """`step` is computed again: from what it began with."""
        for unit, before in zip(units, self._begun.get(step, ()), strict=False):
            unit.held, unit.zeroed = before
        for later in [number for number in self._begun if number >= step]:
            del self._begun[later]
