"""Steps of LuWu, unit by unit: what the closed form (L6) does not see.

    compute   forward through the units, backward in reverse; waits for a unit's weights
    down      pulls in the order in which compute will need them, `ahead` units before it at most
    up        pushes, as backward ends a unit
    read      a unit's state, when its gradient is on its way        memory   sum, update, publish
    write     its state, when it is updated; not read again before that

Of several micro-batches each is pulled and pushed; a unit is read, updated and written as the last
one's gradient of it comes, and its passes over memory are counted there. `driven.py` has what the
project does instead: it holds the updates of such a step back until all of its gradients are in.

A forward pull of the next step waits until the unit is published: the first unit's gradient is the
last to come and its weights the first to be needed, so that is where steps are seen to be chained.
Workers are equal, so one stands for all; the switch sums and copies at the rate of the links.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import simpy

from luwu.base.errors import ConfigError
from luwu.predict.events.engines import Engine, Process, Record
from luwu.predict.hardware.curves import Notes
from luwu.predict.hardware.model import Transformer
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.layers import compute_time, operators_of
from luwu.predict.systems.in_network import OptimizerNodes, node_resources

STEPS = 8
"""Played; the last one is measured, when all engines are in their stride."""
AHEAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is pulled and pushed together, and its seconds on every engine."""

    name: str
    parameters: float
    forward_s: float
    backward_s: float
    pull_s: float
    push_s: float
    read_s: float
    memory_s: float
    write_s: float


@dataclass(frozen=True, slots=True)
class Played:
    """Steps that were played."""

    record: Record
    ends_s: tuple[float, ...]
    """When compute was done with each step."""

    @property
    def step_s(self) -> float:
        """Of the last step, from the end of the one before."""
        return self.ends_s[-1] - self.ends_s[-2]

    def busy_ratio(self, engine: str) -> float:
        """How much of the last step an engine was at work."""
        start, end = self.ends_s[-2], self.ends_s[-1]
        busy = sum(
            max(0.0, min(span.end_s, end) - max(span.start_s, start))
            for span in self.record.of(engine)
        )
        return busy / (end - start)


def units_of(job: TrainingJob, nodes: OptimizerNodes) -> list[Unit]:
    """A unit for each layer, and one for embedding and output, which is used last."""
    model = job.model
    whole = compute_time(job, operators_of(job, Notes()))
    head_s = whole.pop("output layer")
    again_s = whole.pop("recomputation")
    forward_s = sum(whole.values()) / 3
    layers = [
        _unit(job, nodes, f"layer {index}", model.layer_parameters,
              forward_s / model.layers, (2 * forward_s + again_s) / model.layers)
        for index in range(model.layers)
    ]  # fmt: skip
    return [*layers, _unit(job, nodes, "head", _rest(model), head_s / 3, 2 * head_s / 3)]


def _rest(model: Transformer) -> float:
    return float(model.parameters - model.layers * model.layer_parameters)


def _unit(
    job: TrainingJob, nodes: OptimizerNodes, name: str, parameters: float, forward_s: float,
    backward_s: float,
) -> Unit:  # fmt: skip
    seconds = node_resources(job, nodes, parameters)
    return Unit(
        name=name, parameters=parameters, forward_s=forward_s, backward_s=backward_s,
        pull_s=seconds["pull"] / (job.micro_batches * nodes.pulls),
        push_s=seconds["push"] / job.micro_batches,
        read_s=seconds["disk read"], memory_s=seconds["node memory"],
        write_s=seconds["disk write"],
    )  # fmt: skip


def play_steps(
    job: TrainingJob, nodes: OptimizerNodes, *, steps: int = STEPS, ahead: int = AHEAD
) -> Played:
    """Play some steps. Raises ConfigError."""
    if steps < 2 or ahead < 1:
        raise ConfigError(f"steps is at least 2 and ahead at least 1, got {steps} and {ahead}")
    env, record = simpy.Environment(), Record()
    return _World(
        env, record, units_of(job, nodes), steps, ahead, nodes.pulls, job.micro_batches
    ).play()


class _World:
    """Engines, and what each waits for."""

    def __init__(
        self, env: simpy.Environment, record: Record, units: list[Unit], steps: int, ahead: int,
        pulls: int, micro_batches: int,
    ) -> None:  # fmt: skip
        self._env, self._record, self._units = env, record, units
        self._steps, self._pulls, self._micro_batches = steps, pulls, micro_batches
        self._engines = {
            name: Engine(env, record, name)
            for name in ("compute", "down", "up", "read", "memory", "write")
        }
        self._published: dict[tuple[int, int], simpy.Event] = {}
        self._written: dict[tuple[int, int], simpy.Event] = {}
        self._pulled: dict[tuple[int, int, int], simpy.Event] = {}
        self._room = simpy.Container(env, capacity=ahead, init=ahead)
        """Units that may still be pulled ahead of compute."""
        self._ends: list[float] = []

    def play(self) -> Played:
        """All steps, to the last write."""
        for step in range(self._steps + 1):
            for index in range(len(self._units)):
                self._published[step, index] = self._env.event()
                self._written[step, index] = self._env.event()
                for use in range(self._micro_batches * self._pulls):
                    self._pulled[step, use, index] = self._env.event()
        for index in range(len(self._units)):
            self._published[0, index].succeed()
            self._written[0, index].succeed()
        self._env.process(self._compute())
        self._env.process(self._pull())
        self._env.run()
        return Played(self._record, tuple(self._ends))

    def _uses(self) -> Iterator[tuple[int, int]]:
        """(use, unit) in the order in which a step needs them."""
        order = range(len(self._units))
        for part in range(self._micro_batches):
            yield from ((part * self._pulls, index) for index in order)
            if self._pulls == 2:
                yield from ((part * 2 + 1, index) for index in reversed(order))

    def _pull(self) -> Process:
        for step in range(self._steps):
            for use, index in self._uses():
                yield self._room.get(1)
                yield self._published[step, index]
                unit = self._units[index]
                job = f"step {step} {unit.name}"
                yield from self._engines["down"].work(job, unit.pull_s, unit.parameters)
                self._pulled[step, use, index].succeed()

    def _compute(self) -> Process:
        for step in range(self._steps):
            for part in range(self._micro_batches):
                yield from self._forward(step, part)
                yield from self._backward(step, part)
            self._ends.append(self._env.now)

    def _forward(self, step: int, part: int) -> Process:
        for index, unit in enumerate(self._units):
            yield self._pulled[step, part * self._pulls, index]
            job = f"step {step} forward {unit.name}"
            yield from self._engines["compute"].work(job, unit.forward_s)
            yield self._room.put(1)

    def _backward(self, step: int, part: int) -> Process:
        is_last = part == self._micro_batches - 1
        for index, unit in reversed(list(enumerate(self._units))):
            if self._pulls == 2:
                yield self._pulled[step, part * 2 + 1, index]
            job = f"step {step} backward {unit.name}"
            yield from self._engines["compute"].work(job, unit.backward_s)
            if self._pulls == 2:
                yield self._room.put(1)
            self._env.process(self._update(step, index) if is_last else self._push(step, index))

    def _push(self, step: int, index: int) -> Process:
        """A gradient of an earlier micro-batch travels up, to be added."""
        unit = self._units[index]
        job = f"step {step} {unit.name}"
        yield from self._engines["up"].work(job, unit.push_s, unit.parameters)

    def _update(self, step: int, index: int) -> Process:
        """A unit's gradient travels up; the node updates and publishes it, and writes it down."""
        unit = self._units[index]
        job = f"step {step} {unit.name}"
        reading = self._env.process(self._read(step, index))
        yield from self._push(step, index)
        yield reading
        yield from self._engines["memory"].work(job, unit.memory_s, unit.parameters)
        self._published[step + 1, index].succeed()
        yield from self._engines["write"].work(job, unit.write_s, unit.parameters)
        self._written[step + 1, index].succeed()

    def _read(self, step: int, index: int) -> Process:
        unit = self._units[index]
        yield self._written[step, index]
        job = f"step {step} {unit.name}"
        yield from self._engines["read"].work(job, unit.read_s, unit.parameters)
