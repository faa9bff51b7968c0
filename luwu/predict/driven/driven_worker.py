"""A worker in virtual time: the project's own `NicCore`, and a script that computes units in order.

Like the training session it requests weights in the order of their use, as many units ahead as
there is room for; of the next step where a unit's gradient is pushed (`streaming`) or the step is
committed (`at_step`). The core decides when weights may be used, and how much of a gradient is
under way at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from luwu.base.dtypes import DTYPES
from luwu.nic.core import NicCore
from luwu.nic.core import actions as nic
from luwu.predict.driven.engines import JOB, NEVER, Engine, Token
from luwu.predict.model.clock import Clock, Event, Process, Semaphore
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.layers import compute_time, operators_of
from luwu.protocol.actions import Drop, Note, Send
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper
from luwu.wire.messages import Message

STEPS: Final = 3
"""Played; the last one is measured. Out of core the second may be shorter than all after it: the
first has left it less to write."""
AHEAD: Final = 4
"""Units that may be requested before compute is at them."""
GRADIENT_DTYPES: Final[dict[float, str]] = {2: "bfloat16", 4: "float32"}
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


class DrivenWorker:
    """One worker; `send` puts a message on its way to the switch; `pulls` are of a unit in a
    micro-batch, `scale` is how many parameters each element of the layout is."""

    def __init__(
        self, clock: Clock, *, job: TrainingJob, pulls: int, description: Description, scale: int,
        send: Callable[[Message, Any], None], rank: int, world_size: int,
    ) -> None:  # fmt: skip
        self._clock, self._scale, self._send = clock, scale, send
        self._units, self._micro_batches, self._pulls = units_of(job), job.micro_batches, pulls
        self._gradient_dtype = GRADIENT_DTYPES[job.software.gradient_bytes]
        self._description, self._layout = description, description.layout
        self._streaming = description.update == "streaming"
        self._compute = Engine(clock, "compute")
        self._core = NicCore(job=JOB, rank=rank, world_size=world_size, incarnation=1, retry=NEVER)
        self._room = Semaphore(clock, AHEAD)
        new_event = partial(Event, clock)
        self._joined = new_event()
        self._pulled: dict[tuple[int, int, int], Event] = defaultdict(new_event)
        """(step, use, unit): its weights are here."""
        self._over: dict[tuple[int, int], Event] = defaultdict(new_event)
        """(step, unit): it has no part in the step any more."""
        self.ends_s: list[float] = []
        """The end of each step's compute."""
        self.is_finished = False
        clock.start(self._run())

    def received(self, message: Message, payload: Any, payload_bytes: int) -> None:
        self._do(self._core.received(self._clock.now_ns, message, payload, payload_bytes))

    def _do(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case Send(_, message, payload):
                    self._send(message, payload)
                case Drop(payload) | nic.Fill(payload=payload):
                    payload.drop()  # type: ignore[attr-defined]
                case nic.Done(done):
                    done.set()  # type: ignore[attr-defined]  # the handle of a pull or push
                case nic.Joined():
                    self._joined.set()
                case nic.StepDecided(step):
                    self.is_finished = step == STEPS - 1
                case nic.Judged() | Note():
                    pass
                case _:
                    raise AssertionError(f"nothing goes wrong here, but the core asks for {action}")

    def _run(self) -> Process:
        description, extent_chunks = self._description, self._layout.extent_chunks
        encoded, now_ns = description.to_bytes(), self._clock.now_ns
        self._do(self._core.join(now_ns, encoded, description.hash, extent_chunks=extent_chunks))
        yield self._joined
        self._clock.start(self._pull_all())
        for step in range(STEPS):
            pushes: list[Event] = []
            for part in range(self._micro_batches):
                yield from self._forward(step, part)
                if self._streaming:
                    self._do(self._core.begin(self._clock.now_ns, step, HYPER))
                yield from self._backward(step, part, pushes)
            self.ends_s.append(self._clock.now_s)
            self._do(self._core.commit(self._clock.now_ns, step, self._micro_batches, HYPER))
            if not self._streaming:
                for index in range(len(self._units)):
                    self._over[step, index].set()
            yield from pushes

    def _forward(self, step: int, part: int) -> Process:
        for index, unit in enumerate(self._units):
            yield self._pulled[step, part * self._pulls, index]
            yield from self._compute.work(unit.forward_s)
            self._room.release()

    def _backward(self, step: int, part: int, pushes: list[Event]) -> Process:
        for index, unit in reversed(list(enumerate(self._units))):
            if self._pulls == 2:
                yield self._pulled[step, part * 2 + 1, index]
            yield from self._compute.work(unit.backward_s)
            if self._pulls == 2:
                self._room.release()
            if self._streaming:  # requested again before the gradient is pushed
                self._over[step, index].set()
            pushes.append(self._push(step, part, index))

    def _uses(self) -> Iterator[tuple[int, int]]:
        """(use, unit) in the order in which a step has them."""
        order = range(len(self._units))
        for part in range(self._micro_batches):
            yield from ((part * self._pulls, index) for index in order)
            if self._pulls == 2:
                yield from ((part * 2 + 1, index) for index in reversed(order))

    def _pull_all(self) -> Process:
        for step in range(STEPS):
            for use, index in self._uses():
                yield self._room.acquire()
                if use == 0 and step:
                    yield self._over[step - 1, index]
                done, extents = self._pulled[step, use, index], self._layout.unit_extents[index]
                self._do(self._core.pull(self._clock.now_ns, done, step, use, list(extents)))

    def _push(self, step: int, part: int, index: int) -> Event:
        last, dtype, gradients = part == self._micro_batches - 1, self._gradient_dtype, []
        for extent in self._layout.trainable_extents(index):
            nbytes = self._layout.extents[extent].elems * DTYPES[dtype].nbytes
            payload = Token(nbytes, nbytes * self._scale)
            gradients.append(
                nic.Gradient(index=extent, payload=payload, payload_bytes=nbytes, dtype=dtype)
            )
        done, weight, is_last = Event(self._clock), float(last), last and self._streaming
        now_ns = self._clock.now_ns
        self._do(self._core.push(now_ns, done, step, part, gradients, weight=weight, last=is_last))
        return done
