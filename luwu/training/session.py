"""One worker's training: which step it computes, what of the model is here, what was lost.

    fully_shard     `Session.add_unit`     units are collected; parameters become placeholders
    optimizer made  `Session.finalise`     layout, join; nothing may change any more
    forward         `acquire`, `release`   a unit's weights come and go
    backward        `begin_backward`, `push`, `end_backward`
    step()          `commit`               the next step begins
    StepAborted     `attempt`              everything of the lost attempt is dropped, then it is
                                           raised: the script goes on at `error.step`

The order of work (`update`) decides what a step may do. With `at_step` every backward is a part of
its own, and hyper-parameters count at `step()`. With `streaming` the only part is the last, and
hyper-parameters are stated when the backward begins.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from luwu.base.address_range import Memory
from luwu.base.errors import ConfigError, LuwuError, StepAborted, StepOrderError
from luwu.layout import Layout
from luwu.nic.cells import ChunkGradient
from luwu.nic.reader import StateReader
from luwu.training.backward import Backward, in_backward
from luwu.training.clip import ClippedNorm
from luwu.training.devices.device import Device
from luwu.training.devices.gradients import ChunkPlan, gradient_plan, push_unit
from luwu.training.devices.weights import ByteCount
from luwu.training.interface import Handle, Nic
from luwu.training.loss_scale import LossScale
from luwu.training.model import (
    describe,
    dtype_name,
    fill_units,
    push_dtypes,
    say_if_frozen,
    say_if_one_unit,
)
from luwu.training.placeholder import Placeholder
from luwu.training.prefetch import Prefetcher
from luwu.training.result import StepResult
from luwu.training.roots import Roots
from luwu.training.state import initialise
from luwu.training.state.attached import Attachments
from luwu.training.state.first_weights import FirstWeights
from luwu.training.unit import Unit
from luwu.wire.description import BESIDE, NORM_TYPE, Description


class Session:
    """See the module; made by `luwu.init`."""

    def __init__(self, nic: Nic, *, agree: Mapping[str, str], device: Device) -> None:
        self.mover = device
        self.nic = device.connect(nic)
        self.agree = dict(agree)
        for key in {NORM_TYPE, BESIDE} & self.agree.keys():
            raise ConfigError(f"{key!r} is agreed on by luwu; call it otherwise in agree=")
        self.device = device.where
        self.rank, self.world_size = nic.rank, nic.world_size
        self.chunk_bytes = nic.chunk_bytes
        self.prefetch_units = nic.prefetch_units
        """Pulls kept under way ahead of use; may be changed until the optimizer is made."""
        self.is_resumed = False
        """The network had weights when we joined."""
        self.first_weights = FirstWeights(self)

        self.added_units: list[Unit] = []
        """In the order of the calls of fully_shard."""
        self.ignored: set[int] = set()
        """Ids of parameters that the script keeps for itself."""
        self.roots: Roots | None = None
        self.layout: Layout | None = None
        self.units: list[Unit] = []
        """Those with parameters, in the order of the layout."""

        self.step = 0
        """The step to compute next, or being computed."""
        self.aborts_count = 0
        self.parts = 0
        """Backwards of this step that are complete and pushed."""
        self.is_last_backward = True
        """False: another backward follows before `step()`."""
        self.gradient_weight = 1.0
        """What this rank's gradient of a step counts for."""
        self.loss_scale = LossScale(self)
        self.attachments = Attachments(self)
        self.parameter_bytes = ByteCount()
        self.weights_memory = Memory()
        self.backward = Backward(self)
        self.clip: ClippedNorm | None = None
        """Clipping asked for in this step."""
        self.norm_type = 2.0
        """The norm of gradients that the node takes."""
        self.stats_every: int | None = None
        """Steps with a number that it divides are measured."""
        self.in_transforms: set[Unit] = set()
        """Units that ran in a transform of torch.func; they keep their weights."""
        self.only_computes = False
        """There is no optimizer: the model was used before one was made."""
        self.is_finished = False
        self.has_forward = False
        """In this step."""
        self.is_begun = False
        """Weights were asked for: the first ones can no longer be chosen."""
        self._streaming = False
        self._keeps_all = False
        """The backward that runs is not pushed."""
        self._state_hyper: Callable[[], bytes] = lambda: b""
        self._stated_hyper: bytes | None = None
        self.frozen = ""
        """Names the parameters that were frozen as the last backward began; part of what all ranks
        must state alike of a step."""
        self._pushes: list[Handle] = []
        self._gradient_plans: list[tuple[ChunkPlan, ...]] = []
        """By unit."""
        self._prefetcher: Prefetcher | None = None
        self.last_result: StepResult | None = None
        """Of the last step that was committed and not lost."""
        self._results: weakref.WeakSet[StepResult] = weakref.WeakSet()

    # ---------------------------------------------------------------------- before training

    @property
    def is_final(self) -> bool:
        """Whether the optimizer is made."""
        return self._prefetcher is not None

    @property
    def has_no_parameters(self) -> bool:
        """No unit has any, and so there is no job to join."""
        return not self.is_final and not any(
            isinstance(parameter, Placeholder)
            for unit in self.added_units
            for module in unit.modules
            for parameter in module.parameters()
        )

    def add_unit(self, unit: Unit) -> None:
        """A call of fully_shard."""
        if self.is_final:
            raise ConfigError("fully_shard was called after the optimizer was made; call it before")
        self.added_units.append(unit)

    def finalise(
        self, groups: Sequence[Sequence[Placeholder]], *, optimizer: str, update: str,
        state_fields: tuple[str, ...], hyper: Callable[[], bytes], norm_type: float = 2.0,
    ) -> None:  # fmt: skip
        """The optimizer is made: lay out the model, join the job."""
        if self.is_final:
            raise ConfigError(
                "the model was used before this optimizer was made, and so joined its job as one "
                "that is not trained; make the optimizer before the first forward"
                if self.only_computes
                else "this session has an optimizer already; use its parameter groups"
            )
        if update not in ("at_step", "streaming"):
            raise ConfigError(f"update={update!r}: choose 'at_step' or 'streaming'")
        self._streaming = update == "streaming"
        self._state_hyper, self.norm_type = hyper, norm_type
        model = describe(self, groups)
        say_if_one_unit(self, model)
        say_if_frozen(self, model)
        self.roots, self.layout, self.units = model.roots, model.layout, model.units
        self.first_weights.laid_out(model.roots)
        initialise.check(self)
        initialise.fill_buffers(self)
        description = Description(
            layout=self.layout,
            optimizer=optimizer,
            update=update,
            state_fields=state_fields,
            agreement=self.agree | self._agreement(model.roots),
        )
        self._join(description)
        fill_units(self)
        self.mover.start(unit_bytes_max=self.unit_bytes_max, window=self.prefetch_units)
        self._gradient_plans = [
            gradient_plan(self.layout, unit.index, unit.push_dtype) for unit in self.units
        ]
        self._prefetcher = Prefetcher(
            self.nic,
            self.units,
            window=self.prefetch_units,
            streaming=self._streaming,
            step=self.step,
        )
        self.attachments.joined()

    def _agreement(self, roots: Roots) -> dict[str, str]:
        """What ranks must agree on, where it is not what is usual."""
        said = push_dtypes(self.units)
        if self.norm_type != 2:
            said[NORM_TYPE] = f"{self.norm_type:g}"
        beside = " ".join(prefix for prefix in roots.prefixes.values() if prefix)
        if beside:
            said[BESIDE] = beside
        return said

    def _finalise_without_optimizer(self) -> None:
        """The model is used before there is an optimizer: it is not trained."""
        self.only_computes = True
        self.finalise([], optimizer="sgd", update="at_step", state_fields=(), hyper=lambda: b"")

    def _join(self, description: Description) -> None:
        """Become a member."""
        while True:
            try:
                joined = self.nic.join(description)
            except StepAborted:
                continue  # nothing was decided, and nothing of ours is lost
            break
        self.step, self.is_resumed = joined.step, joined.loaded
        self.first_weights.joined()

    # ---------------------------------------------------------------------- what can be looked at

    @property
    def unit_bytes_max(self) -> int:
        """Bytes of the largest unit's weights."""
        return max((unit.nbytes for unit in self.units), default=0)

    @property
    def parameter_bytes_peak(self) -> int:
        """Most bytes of weights that were here at once, prefetched ones included."""
        return self.parameter_bytes.peak

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of optimizer state in this process: none."""
        return 0

    @property
    def pull_before_use_ratio(self) -> float:
        """Share of pulls that had come before they were needed; NaN before the first."""
        prefetcher = self._prefetcher
        if prefetcher is None or prefetcher.use_count == 0:
            return float("nan")
        return prefetcher.early_count / prefetcher.use_count

    # ---------------------------------------------------------------------- one step

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Around whatever may raise StepAborted: what the attempt left is dropped first."""
        try:
            yield
        except StepAborted as error:
            latest = self._drop_attempt(error)
            if latest is not error:
                raise latest from error
            raise

    def acquire(self, unit: Unit) -> None:
        """Return when the unit's modules hold its weights."""
        if unit.index < 0:
            return
        unit.follow_requires_grad()
        if (torch.is_grad_enabled() or in_backward()) and not self.only_computes:
            unit.check_room()
        if unit.is_installed:
            return
        if self._streaming and unit.was_pushed:
            raise StepOrderError(
                f"unit {unit.name} was pulled again in step {self.step} after its gradient had "
                'been pushed; with update="streaming" its weights may be those of the next step. '
                'Evaluate after step(), or use update="at_step"'
            )
        unit.check_unchanged()
        others = unit.backward_prefetch if in_backward() else unit.forward_prefetch
        with self.attempt():
            self._running().use(unit)
            self._running().prefetch(others)
        self.first_weights.arrived()
        unit.install()

    def prefetch(self, unit: Unit) -> None:
        """Ask for the unit's weights, if they are not here and there is room for them."""
        self.check_running()
        with self.attempt():
            self._running().prefetch([unit])

    def forget(self, unit: Unit) -> None:
        """The unit's weights are not needed after all, here or on their way."""
        self.release(unit)
        with self.attempt():
            self._running().forget(unit)

    def release(self, unit: Unit) -> None:
        """The unit's weights are not needed for now."""
        if unit.is_installed:
            unit.check_unwritten()
            unit.remove()
            with self.attempt():
                self._running().top_up()

    def check_running(self) -> None:
        """Whether weights can be pulled. Raises LuwuError, ConfigError."""
        if self.is_finished:
            raise LuwuError("luwu.finish() was called; the weights cannot be pulled any more")
        if not self.is_final:
            self._finalise_without_optimizer()
        self.is_begun = True
        self.first_weights.load()
        self.begin_step()

    def begin_step(self) -> None:
        """Nothing of this step was computed: what surrounds it is as it must be for a replay."""
        with self.attempt():
            self.attachments.begin()

    def begin_forward(self, unit: Unit) -> None:
        """A forward of this unit's module begins, outside of backward."""
        self.check_running()
        self.has_forward = True
        self.backward.check_closed()
        if unit.is_root:
            self._running().begin_forward(unit.below)

    def leave_transforms(self) -> None:
        """No transform runs any more: what ran in one is not needed for its backward."""
        units, self.in_transforms = self.in_transforms, set()
        for unit in units:
            if unit.reshard_after_forward and not unit.open_calls:
                self.release(unit)

    def begin_backward(self) -> None:
        """The first hook of a backward runs."""
        if self.only_computes:
            raise ConfigError(
                "backward of a model that was used before its optimizer was made, and so is not "
                "trained; make luwu.optim.AdamW or SGD before the first forward"
            )
        self.frozen = self._name_frozen()
        synced = {unit.requires_gradient_sync for unit in self.units if unit.is_trainable}
        self._keeps_all = True not in synced or (self._streaming and not self.is_last_backward)
        for unit in self.units:
            unit.was_pushed = False
        if self._streaming and not self._keeps_all:
            if False in synced:
                raise StepOrderError(
                    "set_requires_gradient_sync(False) on some units only: with "
                    'update="streaming" one backward pushes the gradients of all units; set it on '
                    'all of them, or use update="at_step"'
                )
            if self.parts:
                raise StepOrderError(
                    f'step {self.step} has had a backward, and with update="streaming" its '
                    'gradients are applied already; call step(), or use update="at_step" to '
                    "accumulate several backwards"
                )
            self._stated_hyper = self._state_hyper()
            with self.attempt():
                self.nic.begin(self.step, self._stated_hyper)
        self._running().begin_backward()

    def _name_frozen(self) -> str:
        """What names the parameters that are frozen now, although their state is kept."""
        names = [
            member.placeholder.luwu_name
            for unit in self.units
            for member in unit.members
            if member.trainable and not member.requires_grad
        ]
        return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16] if names else ""

    def push(self, unit: Unit, *, free: bool = False) -> bool:
        """Send a unit's gradients of this backward, or keep them here; False if it has none.

        With `free` its weights are given up before, so that what is asked for in their place is
        not asked behind the bytes of the gradients.
        """
        gradients: list[torch.Tensor | None] = []
        if self._keeps_all or not unit.requires_gradient_sync:
            unit.keep_gradients()
            if self._keeps_all:
                return False
        else:
            gradients, unit.kept = unit.gradients(), []
        unit.was_pushed = True
        if free:
            self.release(unit)
        if all(gradient is None for gradient in gradients):
            self._push(unit, None)
            return False
        with self.attempt():
            push_unit(
                self.mover,
                self._gradient_plans[unit.index],
                gradients,
                unit.push_dtype,
                lambda group: self._push(unit, group),
            )
        return True

    def _push(self, unit: Unit, group: list[ChunkGradient] | None) -> None:
        with self.attempt():
            handle = self.nic.push(
                self.step,
                self.parts,
                unit.index,
                group,
                dtype_name(unit.push_dtype),
                last=self._streaming,
                weight=self._push_weight(unit),
            )
        self._pushes.append(handle)

    def _push_weight(self, unit: Unit) -> float:
        """Its share of what the node divides the sum of all ranks by."""
        factor = unit.divide_factor
        weight = self.gradient_weight if factor is None else factor / self.world_size
        return weight * self.loss_scale.value

    def end_backward(self) -> None:
        """Everything of the backward is handed over."""
        self.parts += not self._keeps_all

    def commit(self, *, skip: bool = False) -> StepResult:
        """The step is complete: returns when every push is received; the next step begins.

        With `skip` it is left out, on all ranks.
        """
        self.backward.check_closed()
        for unit in self.units:
            if any(gradient is not None for gradient in unit.kept):
                raise StepOrderError(
                    f"step() of step {self.step} while unit {unit.name} keeps gradients that were "
                    "not pushed; call set_requires_gradient_sync(True) and "
                    "set_is_last_backward(True) before the last backward of the step"
                )
        self._check_no_hidden_gradient()
        if self.parts == 0:
            raise StepOrderError(
                f"step() of step {self.step} without a backward since the last one; every rank "
                "must run backward before it calls step(); one that has no samples calls "
                "luwu.empty_backward()"
            )
        hyper = self._state_hyper()
        if self._streaming and hyper != self._stated_hyper:
            raise StepOrderError(
                f"the hyper-parameters of step {self.step} were changed after its backward began; "
                'with update="streaming" they count from there. Change them after step(), or use '
                'update="at_step"'
            )
        number, pushes = self.step, self._pushes
        with self.attempt():
            committed = self.nic.commit(number, self.parts, hyper, skip=skip)
            result = StepResult(self, number, committed)
            self._results.add(result)
            self.last_result = result
            clip = self.clip
            self._forget_step(number + 1)
            self.attachments.take(number + 1)
            self._running().next_step(self.step)
            for handle in pushes:
                if not handle.done:
                    self.nic.wait(handle)
        if clip is not None:
            clip.resolve(result)
        return result

    def _check_no_hidden_gradient(self) -> None:
        for unit in self.units:
            if unit.has_gradient:
                raise StepOrderError(
                    f"unit {unit.name} has a gradient that no backward over its forward made: the "
                    "forward ran inside a transform of torch.func. Transforms are over inputs; for "
                    "gradients of weights call the model outside of them (of a double backward: "
                    "torch.autograd.grad(..., create_graph=True))"
                )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop what was pushed since the last step, on all ranks; nothing to do if nothing was.

        Raises: ConfigError unless `set_to_none`.
        """
        if not set_to_none:
            raise ConfigError(
                "zero_grad(set_to_none=False) gives a parameter that a step does not use a "
                "gradient of 0, so that momentum and weight decay move it on; here gradients do "
                "not outlive their step, and such a parameter is skipped, as after zero_grad(). "
                "Call zero_grad()"
            )
        for unit in self.units:
            unit.kept = []
        if self.parts == 0 and not self.backward.is_open:
            return
        with self.attempt():
            self.nic.cancel(
                f"rank {self.rank} called zero_grad() before step(); to leave a step out, call "
                "skip_step() of the optimizer in place of step()"
            )
        self._free_everything()
        self._forget_step(self.step)
        with self.attempt():
            self._running().restart(self.step)

    def reset(self) -> None:
        """Forget a forward or backward that an error ended; aborts what was pushed of the step."""
        if self.parts or self.backward.is_open:
            self.zero_grad()
            return
        self._forget_step(self.step)
        with self.attempt():
            self._running().restart(self.step)

    def finish(self) -> None:
        """Return when the last step is decided; then part from the job."""
        if self.is_finished:
            return
        if self.is_final:
            self.first_weights.load()
            self.begin_step()
        with self.attempt():
            if self.last_result is not None:
                self.last_result.wait()
            if self._prefetcher is not None:
                self._free_everything()
                self._prefetcher.forget_all()
            self.nic.recorder.event("worker.leaves", rank=self.rank, step=self.step)
            if not self.has_no_parameters:
                self.nic.leave()
        self.mover.close()
        self.nic.close()
        self.is_finished = True

    def open_reader(self) -> StateReader:
        """Hold the newest decided step for reading: of the last `step()`, or the first weights."""
        self.check_running()
        with self.attempt():
            if self.last_result is not None:
                self.last_result.wait()
        return self.nic.open_reader()

    @property
    def has_joined(self) -> bool:
        """Whether this rank is a member: its optimizer is made."""
        return self._prefetcher is not None

    @property
    def is_streaming(self) -> bool:
        """Whether gradients are applied behind the backward."""
        return self._streaming

    # ---------------------------------------------------------------------- helpers

    def _running(self) -> Prefetcher:
        assert self._prefetcher is not None, "the optimizer is made before anything is pulled"
        return self._prefetcher

    def _forget_step(self, next_step: int) -> None:
        self._free_everything()
        self.in_transforms.clear()
        for unit in self.units:
            unit.end_step()
        self.step = next_step
        self.has_forward = False
        self.parts = 0
        self.clip = None
        self._stated_hyper = None
        self._pushes = []
        self.backward.reset()

    def _free_everything(self) -> None:
        for unit in self.units:
            if unit.is_installed:
                unit.remove()
            unit.drop_gradients()
            if unit.weights is not None:
                unit.weights.end_step()

    def _drop_attempt(self, error: StepAborted) -> StepAborted:
        """Forget everything of the lost attempt; the latest error, if another one came."""
        self.aborts_count += 1
        self.first_weights.lost()
        while True:
            self.mover.drop()
            try:
                if self._prefetcher is not None:
                    self._prefetcher.restart(error.step)
                break
            except StepAborted as newer:
                error = newer
        self._forget_step(error.step)
        self.loss_scale.restart(error.step)
        self.attachments.restart(error.step)
        for result in list(self._results):
            if result.number >= error.step:
                result.is_lost = True
        if self.last_result is not None and self.last_result.is_lost:
            self.last_result = None
        return error
