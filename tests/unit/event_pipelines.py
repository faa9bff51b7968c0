"""A pipeline's step played by an event core: a second way, for tests of `events/schedules.py`."""

from __future__ import annotations

import simpy

from luwu.predict.events.engines import Engine, Process, Record
from luwu.predict.events.schedules import (
    BACKWARD,
    FORWARD,
    Pipeline,
    PlayedPipeline,
    Task,
    compute_of,
    data_of,
    port_of,
    tasks_of,
)


def play_by_events(pipeline: Pipeline) -> PlayedPipeline:
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
