"""One backward pass: when the gradient of a unit is final, and its push.

    enter    first hook of the pass     streaming: hyper-parameters are stated
    open     gradient of a unit's outputs is known: its weights are pulled
    close    gradient of its inputs is known: so are those of its parameters
    finish   the engine is done: push what is left, say absent for units that got nothing

A gradient is final, and pushed, when every forward of the unit that has a graph has been closed.
It waits for `finish` where that cannot be known before: the root (its parameters may be used
anywhere), a unit whose inputs need no gradient, one of several forwards that are not all part of
this pass, and everything in a pass over a retained graph. (At `close` nothing of the unit is left
to run: autograd runs what was recorded last first, and `close` was recorded before the forward.)

A reentrant checkpoint repeats the forward inside backward and runs a backward of its own over it;
its first forward left no graph, but is counted (`hidden_calls`), so the unit waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd import Variable

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import LuwuError, StepOrderError
from luwu.training.unit import Call, Unit

if TYPE_CHECKING:
    from luwu.training.session import Session


def in_backward() -> bool:
    """Whether autograd is running backward in this thread."""
    return torch._C._current_graph_task_id() != -1


class Backward:
    """See the module; one object serves every pass of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.is_open = False
        self._retained = False
        self._calls_before: list[tuple[int, int]] = []

    def reset(self) -> None:
        """The pass ended with an error; nothing of it counts."""
        self.is_open = False

    def enter(self) -> None:
        """A hook runs inside backward."""
        if self.is_open:
            return
        session = self._session
        session.loss_scale.check_used()
        session.begin_backward()
        self.is_open = True
        self._retained = torch._C._autograd._get_current_graph_task_keep_graph()
        self._calls_before = [(unit.calls, unit.hidden_calls) for unit in session.units]
        Variable._execution_engine.queue_callback(self._finish)

    def check_closed(self) -> None:
        """A forward begins outside of backward, so none may be running."""
        if self.is_open:
            raise LuwuError(
                f"the last backward of step {self._session.step} ended with an error, so part of "
                "its gradients may be missing; call zero_grad() of the optimizer, which aborts "
                "the step on all ranks, and compute it again"
            )

    def empty(self) -> None:
        """A backward of a rank that has no samples for it."""
        self.check_closed()
        session = self._session
        session.begin_backward()
        for unit in reversed(session.units):
            if unit.is_trainable:
                session.push(unit)
        session.end_backward()

    def open(self, call: Call) -> None:
        """The gradient of one of the outputs is known: the unit computes next."""
        session, unit = self._session, call.unit
        if call.aborts != session.aborts_count or call.step != session.step:
            raise StepOrderError(
                f"unit {unit.name}: this backward is over a forward of step {call.step} "
                f"(attempt {call.aborts}), but step {session.step} (attempt "
                f"{session.aborts_count}) has other weights; run backward before step()"
            )
        self.enter()
        if not call.is_open:
            if unit.was_pushed:
                raise StepOrderError(
                    f"unit {unit.name} was used again after its gradient of this backward had been "
                    "pushed; compute graphs that share it in separate backwards"
                )
            call.is_open = True
            call.opened_ns = SYSTEM_CLOCK.now_ns()
            unit.open_calls.add(call)
        session.acquire(unit)

    def close(self, call: Call) -> None:
        """The gradient of the inputs is known: the unit has computed."""
        session, unit = self._session, call.unit
        self.enter()
        self._end(call)
        if not self._retained:
            unit.calls -= 1
        if unit.is_root:
            return
        is_free = not unit.open_calls and unit.reshard_after_backward
        if not self._retained and unit.calls == 0 and unit.hidden_calls == 0:
            self._push(unit, free=is_free)
        if is_free:
            session.release(unit)

    def _end(self, call: Call) -> None:
        call.unit.open_calls.discard(call)
        if call.is_open:
            call.is_open = False
            end_ns = SYSTEM_CLOCK.now_ns()
            self._session.nic.recorder.span(
                "backward", call.opened_ns, end_ns, step=call.step, unit=call.unit.name
            )

    def _finish(self) -> None:
        session = self._session
        for unit in reversed(session.units):
            for call in list(unit.open_calls):  # their inputs needed no gradient
                self._end(call)
                unit.calls -= 1
            self._push(unit, free=unit.reshard_after_backward)
        for unit in session.units:
            if unit.reshard_after_backward:
                session.release(unit)
        if self._retained:  # their graphs may be run backward again
            for unit, before in zip(session.units, self._calls_before, strict=True):
                unit.calls, unit.hidden_calls = before
        self.is_open = False
        session.end_backward()

    def _push(self, unit: Unit, *, free: bool) -> None:
        if not unit.is_trainable:
            return
        session = self._session
        if unit.was_pushed:
            if not unit.has_gradient:
                return
            raise StepOrderError(
                f"unit {unit.name} got another gradient after its gradient of this backward had "
                "been pushed: a part of it was used outside of its forward"
            )
        start_ns = SYSTEM_CLOCK.now_ns()
        has_gradient = session.push(unit, free=free)
        unit.drop_gradients()
        end_ns = SYSTEM_CLOCK.now_ns()
        if has_gradient:
            recorder = session.nic.recorder
            recorder.span("flatten", start_ns, end_ns, step=session.step, unit=unit.name)
