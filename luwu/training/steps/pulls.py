"""The units' weights in this process: they are pulled before use, and freed after it.

`units/prefetch.py` knows which pulls are under way, and asks for the next ones ahead of use.
"""

from __future__ import annotations

import torch

from luwu.base.address_range import Memory
from luwu.base.errors import StepOrderError
from luwu.nic.shell import Nic
from luwu.training.base.progress import Attempt, Progress
from luwu.training.base.torch_state import in_backward
from luwu.training.devices.device import Device
from luwu.training.devices.weights import ByteCount, keep_weights_from_hooks, name_units_in_errors
from luwu.training.state.first_weights import FirstWeights
from luwu.training.units.model import Model
from luwu.training.units.prefetch import Prefetcher
from luwu.training.units.unit import Unit


class Pulls:
    """See the module; one object for all units of a session."""

    def __init__(
        self, nic: Nic, model: Model, *, progress: Progress, attempt: Attempt,
        first_weights: FirstWeights,
    ) -> None:  # fmt: skip
        name_units_in_errors()
        keep_weights_from_hooks()  # now: the first forward may be in a context of them
        self._nic, self._model = nic, model
        self._progress, self._attempt = progress, attempt
        self._first_weights = first_weights
        self.bytes_count = ByteCount()
        """Bytes of the weights that are here."""
        self._memory = Memory()
        self.is_started = False
        """True if weights can be pulled."""
        self.prefetcher: Prefetcher
        """The pulls that are under way, once weights can be."""
        self.in_transforms: set[Unit] = set()
        """Units that ran in a transform of torch.func; they keep their weights."""

    def start(self, device: Device, *, window: int) -> None:
        """The job is joined: make the units' storages, which stay empty until they are pulled."""
        model = self._model
        for unit in model.units:
            elems = model.layout.unit_elems[unit.index]
            unit.make_weights(device, self._memory, elems=elems, live_bytes=self.bytes_count)
        device.start(unit_bytes_max=model.unit_bytes_max, window=window)
        self.prefetcher = Prefetcher(
            self._nic, model.units, window=window, streaming=self._progress.is_streaming,
            step=self._progress.step,
        )  # fmt: skip
        self.is_started = True

    @property
    def early_ratio(self) -> float:
        """Share of pulls that had come before they were needed; NaN before the first."""
        if not self.is_started or self.prefetcher.use_count == 0:
            return float("nan")
        return self.prefetcher.early_count / self.prefetcher.use_count

    # ---------------------------------------------------------------------- one unit

    def acquire(self, unit: Unit) -> None:
        """Return when the unit's modules hold its weights."""
        if unit.index < 0:
            return
        unit.follow_requires_grad()
        is_backward = in_backward()
        if (torch.is_grad_enabled() or is_backward) and self._progress.is_trained:
            unit.check_room()
        if unit.is_installed:
            return
        if self._progress.is_streaming and unit.was_pushed:
            raise StepOrderError(
                f"unit {unit.name} was pulled again in step {self._progress.step} after its "
                'gradient had been pushed; with update="streaming" its weights may be those of the '
                'next step. Evaluate after step(), or use update="at_step"'
            )
        unit.check_unchanged()
        others = unit.backward_prefetch if is_backward else unit.forward_prefetch
        with self._attempt:
            self.prefetcher.use(unit)
            if others:
                self.prefetcher.prefetch(others)
        if self._first_weights.are_undecided:
            self._first_weights.arrived()
        unit.install()

    def prefetch(self, unit: Unit) -> None:
        """Ask for the unit's weights, if they are not here and there is room for them."""
        with self._attempt:
            self.prefetcher.prefetch([unit])

    def forget(self, unit: Unit) -> None:
        """The unit's weights are not needed after all, here or on their way."""
        self.release(unit)
        with self._attempt:
            self.prefetcher.forget(unit)

    def release(self, unit: Unit) -> None:
        """The unit's weights are not needed for now."""
        if unit.is_installed:
            unit.check_unwritten()
            unit.remove()
            with self._attempt:
                self.prefetcher.freed(unit)

    # ---------------------------------------------------------------------- transforms

    def leave_transforms(self) -> None:
        """No transform runs any more: what ran in one is not needed for its backward."""
        units, self.in_transforms = self.in_transforms, set()
        for unit in units:
            if unit.reshard_after_forward and not unit.open_calls:
                self.release(unit)

    # ---------------------------------------------------------------------- steps

    def end_step(self) -> None:
        """Free everything that is here, and forget what happened in the step."""
        self.let_go()
        self.in_transforms.clear()
        for unit in self._model.units:
            unit.end_step()

    def restart(self, step: int) -> None:
        """The step was dropped and is computed again."""
        with self._attempt:
            self.prefetcher.restart(step)

    def end(self) -> None:
        """Nothing is pulled any more."""
        if self.is_started:
            self.let_go()
            self.prefetcher.forget_all()

    def let_go(self) -> None:
        """Free the weights that are here: nothing reads them any more."""
        for unit in self._model.units:
            if unit.is_installed:
                unit.remove()
            unit.drop_gradients()
            unit.weights.end_step()
