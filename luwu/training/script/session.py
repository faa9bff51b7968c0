"""One worker's training, from `luwu.init` to `luwu.finish`; its parts, and what is done to all.

    fully_shard     `Session.add_unit`     units are collected; parameters become placeholders
    optimizer made  `Session.settle`       layout, join; nothing may change any more
    forward         `Hooks`, `Pulls`       a unit's weights come and go
    backward        `Backward`             its gradient is final, and is pushed
    step()          `Session.commit`       the next step begins
    StepAborted     `Session.attempt`      everything of the lost attempt is dropped, then it is
                                           raised: the script goes on at `error.step`

The order of work (`update`) decides what a step may do. With `at_step` every backward is a part of
its own, and hyper-parameters count at `step()`. With `streaming` the only part is the last, and
hyper-parameters are stated when the backward begins.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from luwu.base.errors import ConfigError, LuwuError, StepAborted, StepOrderError
from luwu.base.tree import ranks_of
from luwu.join.job_file import write_job
from luwu.layout import Layout
from luwu.nic.reader import StateReader
from luwu.nic.shell import Nic
from luwu.training.base.names import dtype_name
from luwu.training.base.progress import Attempt, Progress
from luwu.training.devices.device import Device
from luwu.training.script.optimizers import OptimizerPart, Optimizers
from luwu.training.state.attached import Attachments
from luwu.training.state.first_weights import FirstWeights
from luwu.training.steps.backward import Backward
from luwu.training.steps.hooks import Hooks
from luwu.training.steps.loss_scale import LossScale
from luwu.training.steps.pulls import Pulls
from luwu.training.steps.result import ClippedNorm, Clipping, Results, StepResult
from luwu.training.units.model import Model, report
from luwu.training.units.placeholder import Placeholder
from luwu.training.units.unit import Unit
from luwu.wire.description import BESIDE, NORM_TYPE, Description
from luwu.wire.hyper import StepHyper, encode_hyper
from luwu.wire.norms import Clip


class Session:
    """See the module; made by `luwu.init`."""

    def __init__(self, nic: Nic, *, agree: Mapping[str, str], device: Device) -> None:
        self.attempt = Attempt(self._drop_attempt)
        self.mover = device
        self.nic = nic
        device.connect(nic)
        self.device = device.where
        self.rank, self.world_size = nic.rank, nic.world_size
        self._agree = dict(agree)
        for key in {NORM_TYPE, BESIDE} & self._agree.keys():
            raise ConfigError(f"{key!r} is agreed on by luwu; call it otherwise in agree=")
        self.model = Model()
        self.progress = Progress()
        self.results = Results()
        self.clipping = Clipping()
        self.loss_scale = LossScale(self.progress, self.results)
        self.attachments = Attachments(self.nic, self.progress)
        self.first_weights = FirstWeights(self.nic, self.model)
        self.pulls = Pulls(
            self.nic, self.model, progress=self.progress, attempt=self.attempt,
            first_weights=self.first_weights,
        )  # fmt: skip
        self.backward = Backward(
            self.nic, self.model, device, progress=self.progress, attempt=self.attempt,
            pulls=self.pulls, loss_scale=self.loss_scale, hyper=self._hyper,
            begin=self._begin_backward,
        )  # fmt: skip
        self.hooks = Hooks(
            self.nic, self.model, device=self.device, progress=self.progress, pulls=self.pulls,
            backward=self.backward, begin_forward=self._begin_forward,
        )  # fmt: skip
        self.optimizers = Optimizers()
        self._pending: StepResult | None = None
        """Result of the step that one optimizer has stepped and that is not committed yet."""
        self._has_old_gradients = False
        """True if torch would still have gradients of an earlier step."""
        self.is_finished = False

    # ---------------------------------------------------------------------- before training

    def add_unit(self, unit: Unit, ignored: Iterable[nn.Parameter]) -> None:
        """A call of fully_shard; `ignored`: parameters that the script keeps for itself."""
        self.model.ignored.update(map(id, ignored))
        if self.is_final:
            raise ConfigError("fully_shard was called after the optimizer was made; call it before")
        self.model.added.append(unit)

    def add_optimizer(self, part: OptimizerPart) -> None:
        """An optimizer is made: with the one that has the last parameters the job is joined."""
        if self.is_final:
            raise ConfigError(
                "the model was used before this optimizer was made, and so joined its job as one "
                "that is not trained; make the optimizer before the first forward"
                if not self.progress.is_trained
                else "this session has an optimizer already, whose groups had all parameters that "
                "required a gradient then, or a forward followed; make several optimizers one "
                "after the other, while all that they train requires a gradient"
            )
        if part.settings.update not in ("at_step", "streaming"):
            raise ConfigError(f"update={part.settings.update!r}: choose 'at_step' or 'streaming'")
        self.optimizers.add(part)
        if self.optimizers.cover(self.model):
            self.settle()

    def settle(self) -> None:
        """No optimizer is made any more: join the job, if there is one and that is not done."""
        if self.is_final or not self.optimizers.parts:
            return
        try:
            self._join()
        except ConfigError:
            self.optimizers.parts.clear()
            raise
        self.loss_scale.rule = self.optimizers.settings.loss_scale
        if self.loss_scale.is_dynamic:
            self.attachments.attach("luwu.loss_scale", self.loss_scale, late=True)

    def _join(self) -> None:
        """Lay out the model, become a member of the job."""
        nic, optimizers = self.nic, self.optimizers
        self.progress.is_streaming = optimizers.settings.update == "streaming"
        self.model.lay_out(optimizers.groups, optimizers.stored, nic)
        if self.rank == 0:
            report(nic.recorder, self.model)
        self.first_weights.laid_out(self.device)
        description = Description(
            layout=self.model.layout,
            optimizer=optimizers.name,
            update=optimizers.settings.update,
            state_fields=optimizers.state_fields,
            agreement=self._agree | self._agreement(),
        )
        if self.rank == 0:
            stays = [unit.index for unit in self.units if not unit.reshard_after_forward]
            write_job(description, stays, may_be_clipped=optimizers.may_clip)
        while True:
            try:
                joined = nic.join(description)
            except StepAborted:
                continue  # nothing was decided, and nothing of ours is lost
            break
        self.progress.step, self.progress.is_resumed = joined.step, joined.loaded
        self.first_weights.joined(is_resumed=joined.loaded)
        self.backward.start()
        self.pulls.start(self.mover, window=nic.prefetch_units)
        self.attachments.joined()

    def _hyper(self) -> bytes:
        """The hyper-parameters of the step, as they are now."""
        hyper = StepHyper(
            groups=self.optimizers.numbers(),
            clips=self.clipping.clips,
            max_grad_norm=self.optimizers.max_grad_norm,
            loss_scale=self.loss_scale.value,
            keeps=bool(self.attachments),
            frozen=self.backward.frozen,
        )
        return encode_hyper(hyper)

    def _agreement(self) -> dict[str, str]:
        """Values that ranks must agree on, where they are not the usual ones."""
        stated = {}
        others = [u for u in self.units if dtype_name(u.push_dtype) != u.wire_dtype]
        if others:
            dtypes = (f"{unit.name}: {dtype_name(unit.push_dtype)}" for unit in others)
            stated["reduce_dtype"] = ", ".join(dtypes)
        if self.optimizers.settings.norm_type != 2:
            stated[NORM_TYPE] = f"{self.optimizers.settings.norm_type:g}"
        beside = " ".join(prefix for prefix in self.model.roots.prefixes.values() if prefix)
        if beside:
            stated[BESIDE] = beside
        return stated

    # ---------------------------------------------------------------------- what can be looked at

    @property
    def is_final(self) -> bool:
        """True if this rank is a member of its job: its optimizer is made."""
        return self.pulls.is_started

    @property
    def is_resumed(self) -> bool:
        """The network had weights when we joined."""
        self.settle()
        return self.progress.is_resumed

    @property
    def counted_ranks(self) -> list[int]:
        """Ranks whose gradients count in the attempt."""
        return ranks_of(self.nic.counted)

    @property
    def step(self) -> int:
        """The step to compute next, or being computed."""
        self.settle()
        if not self.optimizers.missing(self.units):
            self.complete()
        return self.progress.step

    @property
    def units(self) -> list[Unit]:
        """Those with parameters, in the order of the layout."""
        return self.model.units

    @property
    def layout(self) -> Layout:
        """The layout of the whole model; there is none before the optimizer is made."""
        self.settle()
        return self.model.layout

    # ---------------------------------------------------------------------- one step

    def check_running(self) -> None:
        """Make sure that weights can be pulled. Raises LuwuError, ConfigError."""
        if self.is_finished:
            raise LuwuError("luwu.finish() was called; the weights cannot be pulled any more")
        if not self.pulls.is_started:
            self.settle()
            if not self.is_final:  # it is used before there is an optimizer
                self.progress.is_trained = False
                self._join()
        self.complete()
        self.progress.is_begun = True
        self.first_weights.load()
        if self.attachments:
            with self.attempt:
                self.attachments.offer()

    def _begin_forward(self, unit: Unit, is_trained: bool) -> None:
        """A forward of this unit's module begins, outside of backward; with `is_trained` one that a
        backward may follow: then the training of the step begins."""
        self.check_running()
        self.backward.check_closed()
        if is_trained and self.attachments:
            with self.attempt:
                self.attachments.begin()
        if unit.is_root:
            self.pulls.prefetcher.begin_forward(unit.below)

    def commit(self, part: OptimizerPart, *, skip: bool = False) -> StepResult:
        """An optimizer steps: with the last one that has to, the step is committed.

        With `skip` it is left out, on all ranks.
        """
        self.backward.check_closed()
        last = self.results.last
        if self.progress.parts == 0 and last is not None and part in self.optimizers.idle:
            self.optimizers.idle.remove(part)
            return last  # as torch's step() without a gradient: it has nothing to do, once
        self._check_complete()
        self.optimizers.note(part, self.progress.step, skip=skip)
        result = self._pending
        if result is None:
            result = self._pending = StepResult(
                self.progress.step, self.complete, attempt=self.attempt,
                attachments=self.attachments,
            )  # fmt: skip
            self.results.expect(result)
        if self.optimizers.is_ready(self.units):
            try:
                self.complete()
            except (ConfigError, StepOrderError):
                if self.optimizers.take_back(part):
                    self._pending = None
                raise
        return result

    def complete(self) -> None:
        """Commit the step that was stepped, if there is one: returns when every push is received;
        the next step begins. Raises StepOrderError if an optimizer has to step too."""
        result = self._pending
        if result is None:
            return
        number, parts = self.progress.step, self.progress.parts
        self.optimizers.check_ready(number, self.units)
        if self._has_old_gradients:
            warnings.warn(
                "no zero_grad() since the last step(): torch would add up the gradients of both; "
                "here each has its own alone", stacklevel=5,
            )  # fmt: skip
        hyper = self.backward.hyper_to_commit()
        self.pulls.let_go()  # before: the node may write over them once all have committed
        self.mover.let_go()
        with self.attempt:
            self.pulls.prefetcher.forget_unused()
            result.handle = self.nic.commit(number, parts, hyper, skip=self.optimizers.skips)
            self.results.last = result
            norms, pushes = self.clipping.resolve(result), self.backward.take_pushes()
            idle = self.optimizers.unstepped
            self._forget_step(number + 1)
            self._has_old_gradients = True
            self.optimizers.idle = idle
            self.attachments.take(number + 1)
        try:
            with self.attempt:
                self.pulls.prefetcher.next_step(number + 1)
                for handle in pushes:
                    if not handle.done:
                        self.nic.wait(handle)
        except StepAborted as error:
            if error.step != number + 1:
                raise
            # This step is decided. Of the next one only pulls were lost, which are requested again.
        for norm in norms:
            norm.check()

    def clip(self, clip: Clip, *, must_be_finite: bool) -> ClippedNorm:
        """Clip the gradient of this step, as it is now. Raises StepOrderError, ConfigError."""
        step, has_stepped = self.step, self._pending is not None
        if self.progress.parts == 0 or has_stepped:
            raise StepOrderError(
                f"clip_grad_norm_ in step {step} "
                f"{'after an optimizer has stepped' if has_stepped else 'before its backward'}: "
                "the network clips the gradient of the whole step; call it between the last "
                "backward() and the first step()"
            )
        return self.clipping.ask(step, clip, must_be_finite=must_be_finite)

    def _begin_backward(self) -> None:
        """A backward begins. Raises StepOrderError if the step was stepped, or clipped."""
        if self.clipping.clips:
            raise StepOrderError(
                f"backward after clip_grad_norm_ in step {self.progress.step}: the network clips "
                "the sum of all backwards of a step; call it after the last backward()"
            )
        if self._pending is not None:
            raise StepOrderError(
                f"backward over a forward of step {self.progress.step}, which an optimizer has "
                "stepped since; run forward again"
            )
        with self.attempt:
            self.attachments.begin()

    def _check_complete(self) -> None:
        """Make sure that the step can be committed. Raises StepOrderError."""
        step = self.progress.step
        for unit in self.units:
            if any(gradient is not None for gradient in unit.kept):
                raise StepOrderError(
                    f"step() of step {step} while unit {unit.name} keeps gradients that were "
                    "not pushed; call set_requires_gradient_sync(True) and "
                    "set_is_last_backward(True) before the last backward of the step"
                )
        for unit in self.units:
            if unit.has_gradient:
                raise StepOrderError(
                    f"unit {unit.name} has a gradient that no backward over its forward made: the "
                    "forward ran inside a transform of torch.func. Transforms are over inputs; for "
                    "gradients of weights call the model outside of them (of a double backward: "
                    "torch.autograd.grad(..., create_graph=True))"
                )
        if self.progress.parts == 0:
            raise StepOrderError(
                f"step() of step {step} without a backward since the last one; every rank "
                "must run backward before it calls step(); one that has no samples calls "
                "luwu.empty_backward()"
            )

    def zero_grad(self, set_to_none: bool = True, part: OptimizerPart | None = None) -> None:
        """Drop what was pushed since the last step, on all ranks; nothing to do if nothing was.

        `part`: the optimizer that does; None: the model. Raises: ConfigError unless `set_to_none`.
        """
        if not set_to_none:
            raise ConfigError(
                "zero_grad(set_to_none=False): gradients are pushed inside backward, so none is "
                "left to be 0, and a parameter that a step does not use is left alone. Call "
                "zero_grad()"
            )
        self._has_old_gradients = False
        if part is not None and self.optimizers.are_several and not self.backward.is_open:
            if part not in self.optimizers.unstepped:
                return  # its gradients are those of its step
            for unit in self.units:
                unit.drop_kept(part.parameter_ids)
            if part not in self.optimizers.with_gradient(self.units):
                return
        if part is not None or not self.optimizers.missing(self.units):
            self.complete()
        for unit in self.units:
            unit.drop_kept()
        if self.progress.parts == 0 and not self.backward.is_open:
            return
        with self.attempt:
            self.nic.cancel(
                f"rank {self.rank} called zero_grad() before step(); to leave a step out, call "
                "skip_step() of the optimizer in place of step()"
            )
        self._forget_step(self.progress.step)
        self.pulls.restart(self.progress.step)

    def reset(self) -> None:
        """Forget a forward or backward that an error ended; aborts what was pushed of the step."""
        if self.progress.parts or self.backward.is_open:
            self.zero_grad()
            return
        self._forget_step(self.progress.step)
        self.pulls.restart(self.progress.step)

    def finish(self) -> None:
        """Return when the last step is decided; then part from the job."""
        if self.is_finished:
            return
        self.settle()
        if self.is_final:
            self.attend()
            self.first_weights.load()
        with self.attempt:
            self.results.wait_for_last()
            self.pulls.end()
            if self.is_final:
                self.nic.leave()
        self.mover.close()
        self.nic.close()
        self.is_finished = True

    def attend(self) -> None:
        """The last step is waited for, here or on another rank, with what is attached now."""
        if self.is_final:
            self.complete()
            with self.attempt:
                self.attachments.wait(self.progress.step - 1)

    def open_reader(self) -> StateReader:
        """Hold the newest decided step for reading: of the last `step()`, or the first weights."""
        self.check_running()
        with self.attempt:
            self.results.wait_for_last()
        return self.nic.open_reader()

    # ---------------------------------------------------------------------- what is dropped

    def _forget_step(self, next_step: int) -> None:
        self.pulls.end_step()
        self.progress.step, self.progress.parts = next_step, 0
        self._has_old_gradients = False
        self.clipping.drop()
        self.backward.reset()
        self.optimizers.reset()
        self._pending = None

    def _drop_attempt(self, error: StepAborted) -> StepAborted:
        """Forget everything of the lost attempt; the latest error, if another one came."""
        self.progress.aborts_count += 1
        self.first_weights.lost()
        while True:
            self.mover.drop()
            try:
                if self.is_final:
                    self.pulls.prefetcher.restart(error.step)
                break
            except StepAborted as newer:
                error = newer
        self._forget_step(error.step)
        self.loss_scale.restart(error.step)
        self.attachments.restart(error.step)
        self.results.lose(error.step)
        return error


def session_of(parameters: Iterable[torch.Tensor]) -> Session | None:
    """The session that all of these parameters belong to; None if there is no such session."""
    owners = {p.luwu_owner if isinstance(p, Placeholder) else None for p in parameters}
    owner = owners.pop() if len(owners) == 1 else None
    return owner if isinstance(owner, Session) else None
