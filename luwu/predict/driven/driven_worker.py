"""A worker in virtual time: the project's own `NicCore`, and a script that computes units in order.

Like the training session it requests weights in the
order of their use, as many units ahead as there is room for; of the next step where a unit's
gradient is pushed (`streaming`) or the step is committed (`at_step`). The core decides when weights
may be used, and how much of a gradient is under way at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import simpy

from luwu.base.dtypes import DTYPES
from luwu.layout import Layout
from luwu.nic.core import NicCore
from luwu.nic.core import actions as nic
from luwu.predict.driven.engines import JOB, NEVER, Engine, Process, Record, Token
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.layers import compute_time, operators_of
from luwu.protocol.actions import Drop, Note, Send
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper
from luwu.wire.messages import Message

HYPER: Final = encode_hyper(StepHyper(groups=({},)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit that is pulled and pushed as a whole, and the seconds of its compute."""

    name: str
    parameters: float
    forward_s: float
    backward_s: float


def units_of(job: TrainingJob) -> list[Unit]:
    """A unit for each layer, and one for embedding and output, which is used last."""
    model = job.model
    whole = compute_time(job, operators_of(job))
    head_s = whole.pop("output layer")
    again_s = whole.pop("recomputation")
    forward_s = sum(whole.values()) / 3
    layers = [
        Unit(
            name=f"layer {index}", parameters=model.layer_parameters,
            forward_s=forward_s / model.layers,
            backward_s=(2 * forward_s + again_s) / model.layers,
        )
        for index in range(model.layers)
    ]  # fmt: skip
    rest = float(model.parameters - model.layers * model.layer_parameters)
    head = Unit(name="head", parameters=rest, forward_s=head_s / 3, backward_s=2 * head_s / 3)
    return [*layers, head]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The job, as the worker plays it."""

    units: Sequence[Unit]
    steps: int
    micro_batches: int
    pulls: int
    """Pulls of a unit in a micro-batch: 2 if weights are freed between forward and backward."""
    ahead: int
    """Units that may be requested before compute is at them."""
    gradient_dtype: str
    scale: int
    """Parameters of each element of the layout."""


class DrivenWorker:
    """One worker; `send` puts a message on its way to the switch."""

    def __init__(
        self, env: simpy.Environment, record: Record, *, script: Script,
        description: Description, send: Callable[[Message, Any], None], rank: int, world_size: int,
    ) -> None:  # fmt: skip
        self._env, self._script, self._send = env, script, send
        self._layout: Layout = description.layout
        self._streaming = description.update == "streaming"
        self._description = description
        self._compute = Engine(env, record, "compute")
        self._core = NicCore(job=JOB, rank=rank, world_size=world_size, incarnation=1, retry=NEVER)
        self._room = simpy.Container(env, capacity=script.ahead, init=script.ahead)
        self._joined = env.event()
        self._done: dict[int, simpy.Event] = {}
        """The event of each handle."""
        self._asked: dict[tuple[int, int, int], simpy.Event] = defaultdict(env.event)
        """(step, use, unit): its pull is out; the event's value is the pull's own."""
        self._over: dict[tuple[int, int], simpy.Event] = defaultdict(env.event)
        """(step, unit): it has no part in the step any more."""
        self._decided: dict[int, simpy.Event] = defaultdict(env.event)
        self.ends_s: list[float] = []
        """The end of each step's compute."""
        self.is_finished = False
        env.process(self._run())

    def received(self, message: Message, payload: Any, payload_bytes: int) -> None:
        """A message of the node was received."""
        self._do(self._core.received(self._now_ns, message, payload, payload_bytes))

    @property
    def _now_ns(self) -> int:
        return round(self._env.now * 1e9)

    def _do(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case Send(_, message, payload):
                    self._send(message, payload)
                case Drop(payload):
                    payload.drop()  # type: ignore[attr-defined]
                case nic.Fill():
                    action.payload.drop()  # type: ignore[attr-defined]
                case nic.Done(handle):
                    self._done[handle].succeed()
                case nic.Joined():
                    self._joined.succeed()
                case nic.StepDecided(step):
                    self._decided[step].succeed()
                case nic.Judged() | Note():
                    pass
                case _:
                    raise AssertionError(f"nothing goes wrong here, but the core asks for {action}")

    # ---------------------------------------------------------------------- the script

    def _run(self) -> Process:
        encoded, script = self._description.to_bytes(), self._script
        self._do(
            self._core.join(
                self._now_ns,
                encoded,
                self._description.hash,
                extent_chunks=self._layout.extent_chunks,
            )
        )
        yield self._joined
        self._env.process(self._pull_all())
        for step in range(script.steps):
            pushes: list[simpy.Event] = []
            for part in range(script.micro_batches):
                yield from self._forward(step, part)
                if self._streaming:
                    self._do(self._core.begin(self._now_ns, step, HYPER))
                yield from self._backward(step, part, pushes)
            self.ends_s.append(self._env.now)
            self._do(self._core.commit(self._now_ns, step, script.micro_batches, HYPER))
            if not self._streaming:
                for index in range(len(script.units)):
                    self._over[step, index].succeed()
            yield self._env.all_of(pushes)
        yield self._decided[script.steps - 1]
        self.is_finished = True

    def _forward(self, step: int, part: int) -> Process:
        for index, unit in enumerate(self._script.units):
            yield from self._wait(step, part * self._script.pulls, index)
            yield from self._compute.work("forward", unit.forward_s)
            yield self._room.put(1)

    def _backward(self, step: int, part: int, pushes: list[simpy.Event]) -> Process:
        for index, unit in reversed(list(enumerate(self._script.units))):
            if self._script.pulls == 2:
                yield from self._wait(step, part * 2 + 1, index)
            yield from self._compute.work("backward", unit.backward_s)
            if self._script.pulls == 2:
                yield self._room.put(1)
            if self._streaming:  # requested again before the gradient is pushed
                self._over[step, index].succeed()
            pushes.append(self._push(step, part, index))

    def _uses(self) -> Iterator[tuple[int, int]]:
        """(use, unit) in the order in which a step has them."""
        order = range(len(self._script.units))
        for part in range(self._script.micro_batches):
            yield from ((part * self._script.pulls, index) for index in order)
            if self._script.pulls == 2:
                yield from ((part * 2 + 1, index) for index in reversed(order))

    def _pull_all(self) -> Process:
        for step in range(self._script.steps):
            for use, index in self._uses():
                yield self._room.get(1)
                if use == 0 and step:
                    yield self._over[step - 1, index]
                number, done = self._open()
                extents = self._layout.unit_extents[index]
                self._do(self._core.pull(self._now_ns, number, step, use, list(extents)))
                self._asked[step, use, index].succeed(done)

    def _push(self, step: int, part: int, index: int) -> simpy.Event:
        last = part == self._script.micro_batches - 1
        dtype = self._script.gradient_dtype
        gradients = []
        for extent in self._layout.trainable_extents(index):
            nbytes = self._layout.extents[extent].elems * DTYPES[dtype].nbytes
            payload = Token(nbytes, nbytes * self._script.scale)
            gradients.append(
                nic.Gradient(index=extent, payload=payload, payload_bytes=nbytes, dtype=dtype)
            )
        number, done = self._open()
        actions = self._core.push(
            self._now_ns, number, step, part, gradients,
            weight=1.0 if last else 0.0, last=last and self._streaming,
        )  # fmt: skip
        self._do(actions)
        return done

    # ---------------------------------------------------------------------- helpers

    def _open(self) -> tuple[int, simpy.Event]:
        """A new handle, and the event of its end."""
        number = len(self._done)
        done = self._done[number] = self._env.event()
        return number, done

    def _wait(self, step: int, use: int, index: int) -> Process:
        done = yield self._asked[step, use, index]
        yield done
