"""Gradients on their way out, as extents; `backward.py` decides when a unit's gradient is final."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from luwu.nic.memory import ExtentGradient
from luwu.nic.threads import Handle, Ready
from luwu.training.base.interface import Nic
from luwu.training.base.names import dtype_name
from luwu.training.base.progress import Progress
from luwu.training.devices.device import Device, write_unit
from luwu.training.devices.gradients import ExtentPlan, gradient_plan
from luwu.training.steps.attempt import Attempt
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
        self._is_streaming = False
        self._plans: list[tuple[ExtentPlan, ...]] = []
        """Plans of extents by unit."""
        self._handles: list[Handle] = []
        """Handles of this step."""

    def start(self, model: Model, *, streaming: bool) -> None:
        """The layout is known."""
        self._is_streaming = streaming
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
                last=self._is_streaming,
                weight=self._weight(unit),
                ready=ready,
            )
        self._handles.append(handle)

    def _weight(self, unit: Unit) -> float:
        """Its share of what the node divides the sum of all ranks by."""
        factor, ranks = unit.divide_factor, self._nic.world_size
        weight = self.gradient_weight if factor is None else factor / ranks
        return weight * self._loss_scale.value
