"""Schedules of a pipeline: what each stage does, micro-batch by micro-batch, and when.

    E1  1F1B          stage s of p does min(p - 1 - s, m) forwards, then a forward and a backward
                      in turn, then the backwards that are left
    E2  interleaved   a stage has v parts; part k of stage s is number k p + s of the model.
                      Micro-batches go through a part p at a time; a stage does first
                      min(2 (p - 1 - s) + (v - 1) p, m v) forwards of parts
    E3  equal parts   (m + (p - 1)/v) (f + b), forward and backward of a whole stage, if sends take
                      no time; then this is T4
    E4  kept          the first stage has begun and not ended min(p, m) micro-batches at most;
                      interleaved, p + (p - 1)/v of them: this is Y3
    E5  sends of c    a micro-batch of 1F1B takes f + b + 2 c (p - 1)/p in the long run: p of them
                      are under way, and a way through all stages and back has 2 (p - 1) sends

A stage does its tasks in this order and waits for missing inputs; sends overlap with compute, one
at a time from a stage, which has one port; for a share of each the stage waits before it goes on.
The share o of a part's data parallel exchange overlaps with compute: its gather with the first
forward, which ends no sooner; its reduction from the beginning of the last backward on, as
gradients come layer by layer. The rest is exposed at the end: reduction, optimizer, gather.
Sources: Narayanan et al. SC'21 (E1, E2, as Megatron-LM orders them); derived (E3 to E5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import simpy

from luwu.base.errors import ConfigError
from luwu.predict.events.engines import Engine, Fields, Process, Record

FORWARD, BACKWARD = "forward", "backward"
PART_SECONDS = ("forward_s", "backward_s", "reduce_s", "gather_s")


class Task(NamedTuple):
    """One of a stage's: a micro-batch through one of its parts."""

    kind: str
    """FORWARD or BACKWARD."""
    part: int
    micro_batch: int

    @property
    def name(self) -> str:
        """In a record."""
        return f"{self.kind} {self.micro_batch} part {self.part}"

    @property
    def fields(self) -> Fields:
        """In a timeline."""
        return ("micro_batch", self.micro_batch), ("part", self.part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of the model in a stage: seconds of a micro-batch, and of the exchange of its
    gradients and weights among data parallel ranks.
    """

    forward_s: float
    backward_s: float
    reduce_s: float = 0.0
    gather_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A step to be played. Raises ConfigError for what cannot be."""

    parts: tuple[tuple[Part, ...], ...]
    """Parts per stage; as many of each."""
    micro_batches: int
    send_s: float = 0.0
    """From a stage to the next, of activations or of their gradients."""
    sent_bytes: float = 0.0
    """Bytes of such a send."""
    optimizer_s: tuple[float, ...] = ()
    """Seconds per stage; empty: it takes no time."""
    data_overlap: float = 0.0
    """Share of the exchange among data parallel ranks that overlaps with compute."""
    open_sends: float = 0.0
    """Share of a send that its stage waits for before its next task."""

    def __post_init__(self) -> None:
        if not self.parts or not self.parts[0]:
            raise ConfigError(
                "parts: none; a pipeline has a stage or more, and each a part or more"
            )
        if len({len(each) for each in self.parts}) > 1:
            found = ", ".join(str(len(each)) for each in self.parts)
            raise ConfigError(f"parts: stages have {found} of them; as many of each would fit")
        if self.micro_batches < 1:
            raise ConfigError(f"micro_batches: {self.micro_batches}, but at least 1 is played")
        if self.virtual > 1 and (self.stages == 1 or self.micro_batches % self.stages):
            raise ConfigError(
                f"micro_batches: an interleaved pipeline takes {self.stages} at a time, from 2 "
                f"stages on; {self.micro_batches} are not a multiple"
            )
        for key in ("data_overlap", "open_sends"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(f"{key}: {getattr(self, key)!r} is not a share from 0 to 1")
        self._check_seconds()
        if len(self.optimizer_s) not in (0, self.stages):
            raise ConfigError(
                f"optimizer_s: {len(self.optimizer_s)} of them, but {self.stages} stages; one for "
                "each fits"
            )

    def _check_seconds(self) -> None:
        named = [("send_s", self.send_s), ("sent_bytes", self.sent_bytes)]
        named += [("optimizer_s", each) for each in self.optimizer_s]
        for each in self.parts:
            for part in each:
                named += [(key, getattr(part, key)) for key in PART_SECONDS]
        for key, value in named:
            if not 0 <= value < math.inf:  # also catches NaN
                raise ConfigError(f"{key}: {value!r}; a finite number from 0 on fits")

    @property
    def stages(self) -> int:
        return len(self.parts)

    @property
    def virtual(self) -> int:
        """Parts of each stage."""
        return len(self.parts[0])

    def seconds(self, stage: int, task: Task) -> float:
        """That a stage is at a task."""
        part = self.parts[stage][task.part]
        return part.forward_s if task.kind == FORWARD else part.backward_s


@dataclass(frozen=True, slots=True)
class PlayedPipeline:
    """A step that was played."""

    record: Record
    ends_s: tuple[float, ...]
    """When each stage was done, with exchange and optimizer too."""

    @property
    def seconds(self) -> float:
        """Seconds of the step: until the last stage is done."""
        return max(self.ends_s)


# ---------------------------------------------------------------------- orders


def tasks_of(stage: int, stages: int, virtual: int, micro_batches: int) -> list[Task]:
    """Tasks of a stage in order (E1, E2)."""
    forwards = _in_order(FORWARD, stages, virtual, micro_batches)
    backwards = _in_order(BACKWARD, stages, virtual, micro_batches)
    if virtual == 1:
        first = stages - 1 - stage
    else:
        first = 2 * (stages - 1 - stage) + (virtual - 1) * stages
    first = min(first, len(forwards))
    found = list(forwards[:first])
    for forward, backward in zip(forwards[first:], backwards, strict=False):
        found += [forward, backward]
    return [*found, *backwards[len(forwards) - first :]]


@lru_cache(maxsize=2)  # all stages of a pipeline have the same
def _in_order(kind: str, stages: int, virtual: int, micro_batches: int) -> tuple[Task, ...]:
    """Tasks of one kind: all micro-batches, or `stages` of them through each part in turn."""
    at_once = stages if virtual > 1 else micro_batches
    parts = range(virtual) if kind == FORWARD else range(virtual - 1, -1, -1)
    return tuple(
        Task(kind, part, micro_batch)
        for start in range(0, micro_batches, at_once)
        for part in parts
        for micro_batch in range(start, start + at_once)
    )


# ---------------------------------------------------------------------- playing


def compute_of(stage: int) -> str:
    """The engine that does a stage's tasks and its optimizer."""
    return f"stage {stage}"


def data_of(stage: int) -> str:
    """That of its exchange among data parallel ranks."""
    return f"stage {stage} data"


def port_of(stage: int) -> str:
    """That of sends from a stage to others."""
    return f"stage {stage} port"


def play_pipeline(pipeline: Pipeline) -> PlayedPipeline:
    """Play a step: compute, sends, exchange, optimizer of all stages."""
    return _World(pipeline).play()


class _World:
    """Engines of all stages, and what each task waits for."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._env, self._record = simpy.Environment(), Record()
        stages = range(pipeline.stages)
        self._compute = [self._engine(compute_of(stage)) for stage in stages]
        self._data = [self._engine(data_of(stage)) for stage in stages]
        self._ports = [self._engine(port_of(stage)) for stage in stages]
        self._ready: dict[tuple[int, Task], simpy.Event] = {}
        """Events that announce the input of a task from another stage."""
        self._ends = [0.0] * pipeline.stages

    def _engine(self, name: str) -> Engine:
        return Engine(self._env, self._record, name)

    def play(self) -> PlayedPipeline:
        plan = self._pipeline
        for stage in range(plan.stages):
            tasks = tasks_of(stage, plan.stages, plan.virtual, plan.micro_batches)
            for task in tasks:
                self._ready[stage, task] = self._env.event()
                if stage == 0 and task.part == 0 and task.kind == FORWARD:
                    self._ready[stage, task].succeed()  # its input is the data itself
            self._env.process(self._stage(stage, tasks))
        self._env.run()
        return PlayedPipeline(self._record, tuple(self._ends))

    def _stage(self, stage: int, tasks: list[Task]) -> Process:
        plan = self._pipeline
        last = plan.micro_batches - 1
        gathered = [self._env.event() for _ in range(plan.virtual)]
        self._env.process(self._gather(stage, gathered))
        reductions = []
        for task in tasks:
            yield self._ready[stage, task]
            if task.kind == BACKWARD and task.micro_batch == last:
                reductions.append(self._env.process(self._reduce(stage, task.part)))
            seconds = plan.seconds(stage, task)
            yield from self._compute[stage].work(task.name, seconds, 1.0, task.fields)
            if task.kind == FORWARD and task.micro_batch == 0:
                yield gathered[task.part]
            if self._pass_on(stage, task) and plan.open_sends:
                yield self._env.timeout(plan.open_sends * plan.send_s)
        yield self._env.all_of(reductions)
        yield from self._end(stage)
        self._ends[stage] = self._env.now

    def _pass_on(self, stage: int, task: Task) -> bool:
        """To the stage that goes on with it; after the model's last part, backward begins. True if
        it is sent."""
        plan = self._pipeline
        step = 1 if task.kind == FORWARD else -1
        place = task.part * plan.stages + stage + step
        if place == plan.stages * plan.virtual:
            self._ready[stage, Task(BACKWARD, task.part, task.micro_batch)].succeed()
        elif place >= 0:
            part, target = divmod(place, plan.stages)
            ready = self._ready[target, Task(task.kind, part, task.micro_batch)]
            self._env.process(self._send(stage, target, task, ready))
            return True
        return False

    def _send(self, stage: int, target: int, task: Task, ready: simpy.Event) -> Process:
        plan = self._pipeline
        fields = (*task.fields, ("to_stage", target))
        yield from self._ports[stage].work(task.name, plan.send_s, plan.sent_bytes, fields)
        ready.succeed()

    def _gather(self, stage: int, gathered: list[simpy.Event]) -> Process:
        """Gather the weights that overlap with the first forwards, part by part."""
        for part, event in zip(self._pipeline.parts[stage], gathered, strict=True):
            seconds = self._pipeline.data_overlap * part.gather_s
            yield from self._exchange(stage, "gather", seconds)
            event.succeed()

    def _reduce(self, stage: int, part: int) -> Process:
        seconds = self._pipeline.data_overlap * self._pipeline.parts[stage][part].reduce_s
        yield from self._exchange(stage, f"reduce part {part}", seconds)

    def _end(self, stage: int) -> Process:
        """Carry out the exposed part: the rest of the exchange, with the optimizer in between."""
        plan, parts = self._pipeline, self._pipeline.parts[stage]
        share = 1 - plan.data_overlap
        yield from self._exchange(stage, "reduce rest", share * sum(p.reduce_s for p in parts))
        if plan.optimizer_s:
            yield from self._compute[stage].work("optimizer", plan.optimizer_s[stage])
        yield from self._exchange(stage, "gather rest", share * sum(p.gather_s for p in parts))

    def _exchange(self, stage: int, job: str, seconds: float) -> Process:
        if seconds:
            yield from self._data[stage].work(job, seconds, seconds)
