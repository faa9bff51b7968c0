"""One backward pass: when the gradient of a unit is final, and its push.

    enter    first hook of the pass     streaming: hyper-parameters are stated
    open     gradient of a unit's outputs is known: its weights are pulled
    close    gradient of its inputs is known: so are those of its parameters
    finish   the engine is done: push what is left; units that got nothing are absent

A gradient is final, and pushed, when every forward of the unit that has a graph has been closed.
It waits for `finish` where that cannot be known before: the root (its parameters may be used
anywhere), a unit whose inputs need no gradient, one of several forwards that are not all part of
this pass, and everything in a pass over a retained graph. (At `close` nothing of the unit is left
to run: autograd runs what was recorded last first, and `close` was recorded before the forward.)

A reentrant checkpoint repeats the forward inside backward and runs a backward of its own over it;
its first forward left no graph, but is counted (`hidden_calls`), so the unit waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.autograd import Variable

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, LuwuError, StepOrderError
from luwu.nic.memory import ExtentGradient
from luwu.nic.shell import Nic
from luwu.nic.threads import Handle, Ready
from luwu.training.base.names import dtype_name
from luwu.training.base.progress import Attempt, Progress
from luwu.training.devices.device import Device, write_unit
from luwu.training.devices.gradients import ExtentPlan, gradient_plan
from luwu.training.steps.loss_scale import LossScale
from luwu.training.steps.pulls import Pulls
from luwu.training.units.model import Model
from luwu.training.units.unit import Call, Unit


class Backward:
    """See the module; one object serves every pass of a session."""

    def __init__(
        self, nic: Nic, model: Model, device: Device, *, progress: Progress, attempt: Attempt,
        pulls: Pulls, loss_scale: LossScale, hyper: Callable[[], bytes], begin: Callable[[], None],
    ) -> None:  # fmt: skip
        """`hyper`: the hyper-parameters as they are now; `begin`: what a backward begins with."""
        self._nic, self._model, self._device = nic, model, device
        self._progress, self._attempt = progress, attempt
        self._pulls, self._loss_scale = pulls, loss_scale
        self.gradient_weight = 1.0
        """Weight of this rank's gradient in a step."""
        self._plans: list[tuple[ExtentPlan, ...]] = []
        """Plans of extents by unit."""
        self._pushes: list[Handle] = []
        """What was pushed in this step."""
        self.is_open = False
        self.frozen = ""
        """Names the parameters that were frozen as the last backward began; part of what all ranks
        must state alike of a step."""
        self._hyper, self._begin_step = hyper, begin
        self._stated_hyper: bytes | None = None
        """Hyper-parameters of a streaming step, stated as its backward began."""
        self.is_last = True
        """False: another backward follows the coming ones before `step()`."""
        self._scale = 1.0
        """Loss scale of the step."""
        self._keeps_all = False
        """The backward that runs is not pushed."""
        self._retained = False
        self._calls_before: list[tuple[int, int]] = []

    def start(self) -> None:
        """The layout is known."""
        model = self._model
        self._plans = [gradient_plan(model.layout, u.index, u.push_dtype) for u in model.units]
        self._device.plan(self._plans)

    def reset(self) -> None:
        """The step is over, or the pass ended with an error; nothing of it counts any more."""
        self.is_open = False
        self._stated_hyper = None
        self._pushes = []

    def take_pushes(self) -> list[Handle]:
        """The step is committed: what was pushed in it."""
        pushes, self._pushes = self._pushes, []
        return pushes

    def hyper_to_commit(self) -> bytes:
        """The hyper-parameters of the step. Raises StepOrderError if they came too late."""
        hyper = self._hyper()
        if self._progress.is_streaming and hyper != self._stated_hyper:
            raise StepOrderError(
                f"the hyper-parameters of step {self._progress.step} were changed after its "
                'backward began; with update="streaming" they count from there. Change them after '
                'step(), or use update="at_step"'
            )
        return hyper

    # ---------------------------------------------------------------------- one pass

    def enter(self) -> None:
        """A hook runs inside backward."""
        if self.is_open:
            return
        self._loss_scale.check_used()
        self._begin()
        self.is_open = True
        self._retained = torch._C._autograd._get_current_graph_task_keep_graph()
        self._calls_before = [(unit.calls, unit.hidden_calls) for unit in self._model.units]
        Variable._execution_engine.queue_callback(self._finish)

    def check_closed(self) -> None:
        """A forward begins outside of backward, so none may be running."""
        if self.is_open:
            raise LuwuError(
                f"the last backward of step {self._progress.step} ended with an error, so part of "
                "its gradients may be missing; call zero_grad() of the optimizer, which aborts "
                "the step on all ranks, and compute it again"
            )

    def empty(self) -> None:
        """A backward of a rank that has no samples for it."""
        self.check_closed()
        self._begin()
        for unit in reversed(self._model.units):
            if unit.is_trainable:
                self._send(unit, self._take(unit))
        self._end_part()

    def open(self, call: Call, _: object = None) -> None:
        """The gradient of one of the outputs is known: the unit computes next."""
        progress, unit = self._progress, call.unit
        if call.aborts != progress.aborts_count or call.step != progress.step:
            raise StepOrderError(
                f"unit {unit.name}: this backward is over a forward of step {call.step} "
                f"(attempt {call.aborts}), but step {progress.step} (attempt "
                f"{progress.aborts_count}) has other weights; run backward before step()"
            )
        self.enter()
        if call.opened_ns is None:
            if unit.was_pushed:
                raise StepOrderError(
                    f"unit {unit.name} was used again after its gradient of this backward had been "
                    "pushed; compute graphs that share it in separate backwards"
                )
            call.opened_ns = SYSTEM_CLOCK.now_ns()
            unit.open_calls.add(call)
        self._pulls.acquire(unit)
        if torch.is_grad_enabled():  # create_graph=True: a backward of this one reads them again
            unit.keep()

    def close(self, call: Call) -> None:
        """The gradient of the inputs is known: the unit has computed."""
        unit = call.unit
        self.enter()
        self._end(call)
        if not self._retained:
            unit.calls -= 1
        if unit.is_root:
            return
        # No graph of it is left, and no checkpoint will repeat it: its gradient is final.
        if not self._retained and unit.calls == 0 and unit.hidden_calls == 0:
            self._push(unit)
        else:
            self._release(unit)

    def _begin(self) -> None:
        """The first hook of a backward runs."""
        if not self._progress.is_trained:
            raise ConfigError(
                "backward of a model that was used before its optimizer was made, and so is not "
                "trained; make luwu.optim.AdamW or SGD before the first forward"
            )
        self._begin_step()
        self._scale = self._loss_scale.value
        units = self._model.units
        for unit in units:
            unit.begin_backward()
        self.frozen = self._model.name_frozen()
        synced = {unit.requires_gradient_sync for unit in units if unit.is_trainable}
        self._keeps_all = True not in synced or (self._progress.is_streaming and not self.is_last)
        if self._progress.is_streaming and not self._keeps_all:
            self._begin_streaming(has_unsynced=False in synced)
        self._pulls.prefetcher.begin_backward()

    def _begin_streaming(self, *, has_unsynced: bool) -> None:
        """State the hyper-parameters: gradients are applied as they come."""
        step = self._progress.step
        if has_unsynced:
            raise StepOrderError(
                "set_requires_gradient_sync(False) on some units only: with "
                'update="streaming" one backward pushes the gradients of all units; set it on '
                'all of them, or use update="at_step"'
            )
        if self._progress.parts:
            raise StepOrderError(
                f'step {step} has had a backward, and with update="streaming" its '
                'gradients are applied already; call step(), or use update="at_step" to '
                "accumulate several backwards"
            )
        self._stated_hyper = self._hyper()
        with self._attempt:
            self._nic.begin(step, self._stated_hyper)

    def _end(self, call: Call) -> None:
        call.unit.open_calls.discard(call)
        opened_ns, call.opened_ns = call.opened_ns, None
        if opened_ns is not None:
            end_ns = SYSTEM_CLOCK.now_ns()
            self._nic.recorder.span(
                "backward", opened_ns, end_ns, step=call.step, unit=call.unit.name
            )

    def _finish(self) -> None:
        units = self._model.units
        for unit in reversed(units):
            for call in list(unit.open_calls):  # their inputs needed no gradient
                self._end(call)
                unit.calls -= 1
            self._push(unit)
        if self._retained:  # their graphs may be run backward again
            for unit, before in zip(units, self._calls_before, strict=True):
                unit.calls, unit.hidden_calls = before
        self.is_open = False
        self._end_part()

    def _end_part(self) -> None:
        """Everything of the backward is handed over."""
        if not self._keeps_all:
            self._progress.parts += 1

    def _push(self, unit: Unit) -> None:
        """Push a unit's gradient, which is final, and let its weights go."""
        if not unit.is_trainable or (unit.was_pushed and not unit.has_gradient):
            self._release(unit)
            return
        if unit.was_pushed:
            raise StepOrderError(
                f"unit {unit.name} got another gradient after its gradient of this backward had "
                "been pushed: a part of it was used outside of its forward"
            )
        unit.run_hooks()
        start_ns = SYSTEM_CLOCK.now_ns()
        gradients = self._take(unit)
        # Before they are written: what is asked for in place of the unit's weights is not asked
        # behind the bytes of its gradients.
        self._release(unit)
        has_gradient = self._send(unit, gradients)
        unit.drop_gradients()
        end_ns = SYSTEM_CLOCK.now_ns()
        if has_gradient:
            self._nic.recorder.span(
                "flatten", start_ns, end_ns, step=self._progress.step, unit=unit.name
            )

    def _take(self, unit: Unit) -> list[torch.Tensor | None] | None:
        """A unit's gradients, to be pushed; None: they are kept for another backward."""
        if unit.requires_gradient_sync and not self._keeps_all:
            return unit.take_gradients()
        unit.keep_gradients()
        if self._keeps_all:
            return None
        unit.was_pushed = True
        return []

    def _send(self, unit: Unit, gradients: Sequence[torch.Tensor | None] | None) -> bool:
        """Send a unit's gradients; False if it has none. None: they are kept, nothing is sent."""
        if gradients is None:
            return False
        has_gradient = any([gradient is not None for gradient in gradients])
        with self._attempt:
            if has_gradient:
                plans = self._plans[unit.index]
                for group, ready in write_unit(self._device, plans, gradients, unit.push_dtype):
                    self._send_extents(unit, group, ready)
            else:
                self._send_extents(unit, None)
        return has_gradient

    def _send_extents(
        self, unit: Unit, group: list[ExtentGradient] | None, ready: Ready | None = None
    ) -> None:
        progress, factor = self._progress, unit.divide_factor
        # Its share of what the node divides the sum of all ranks by.
        weight = self.gradient_weight if factor is None else factor / self._nic.world_size
        handle = self._nic.push(
            progress.step, progress.parts, unit.index, group, dtype_name(unit.push_dtype),
            last=progress.is_streaming, weight=weight * self._scale, ready=ready,
        )  # fmt: skip
        self._pushes.append(handle)

    def _release(self, unit: Unit) -> None:
        if unit.may_go(retained=self._retained):
            self._pulls.release(unit)
