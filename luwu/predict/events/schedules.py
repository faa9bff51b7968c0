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
    E6  a task ends   its seconds after the stage's task before it and the send that it waits for
                      have both ended; a send begins after its task and its port's send before

A stage does its tasks in this order and waits for missing inputs; sends overlap with compute, one
at a time from a stage, which has one port; for a share of each the stage waits before it goes on.
The share o of a part's data parallel exchange overlaps with compute: its gather with the first
forward, which ends no sooner; its reduction from the beginning of the last backward on, as
gradients come layer by layer. The rest is exposed at the end: reduction, optimizer, gather.
Orders are fixed, so the step is the longest path through all tasks and sends (E6).
Sources: Narayanan et al. SC'21 (E1, E2, as Megatron-LM orders them); derived (E3 to E6).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from luwu.predict.events.engines import Fields, Record, Span

FORWARD, BACKWARD = "forward", "backward"


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
    """A step to be played."""

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
    record = Record()
    ends_s = _Paths(pipeline, record).ends()
    record.spans.sort(key=lambda span: (span.end_s, span.start_s))
    return PlayedPipeline(record, tuple(ends_s))


def longest_path_s(pipeline: Pipeline) -> float:
    """Seconds of a step (E6), without a record: a fraction of the time."""
    return max(_Paths(pipeline, None).ends())


class _Paths:
    """Ends of tasks, as far as they are known."""

    def __init__(self, plan: Pipeline, record: Record | None) -> None:
        self._plan, self._record = plan, record
        stages = range(plan.stages)
        self._tasks = [
            deque(tasks_of(stage, plan.stages, plan.virtual, plan.micro_batches))
            for stage in stages
        ]
        self._reduced = [0.0] * plan.stages
        """When the exchange beside compute is done with what it has."""
        self._gathered = [[self._gather(stage, part) for part in plan.parts[stage]]
                          for stage in stages]  # fmt: skip
        self._now = [0.0] * plan.stages
        self._sent = [0.0] * plan.stages
        """When the port of a stage is done with what it has."""
        self._arrived: dict[tuple[int, Task], float] = {
            (0, task): 0.0 for task in self._tasks[0] if task.kind == FORWARD and task.part == 0
        }

    def ends(self) -> list[float]:
        """The ends of all stages."""
        waiting = deque(range(self._plan.stages))
        while waiting:
            stage = waiting.popleft()
            while self._tasks[stage] and (stage, self._tasks[stage][0]) in self._arrived:
                target = self._do(stage, self._tasks[stage].popleft())
                if target is not None and target != stage:
                    waiting.append(target)
        return [self._end(stage) for stage in range(self._plan.stages)]

    def _do(self, stage: int, task: Task) -> int | None:
        """A task whose input is there; the stage that its output goes to."""
        plan = self._plan
        start = max(self._now[stage], self._arrived[stage, task])
        if task.kind == BACKWARD and task.micro_batch == plan.micro_batches - 1:
            seconds = plan.data_overlap * plan.parts[stage][task.part].reduce_s
            before = max(start, self._reduced[stage])
            self._reduced[stage] = self._exchange(
                stage, f"reduce part {task.part}", before, seconds
            )
        end = start + plan.seconds(stage, task)
        if self._record is not None:
            self._record.spans.append(
                Span(compute_of(stage), task.name, start, end, 1.0, task.fields)
            )
        if task.kind == FORWARD and task.micro_batch == 0:
            end = max(end, self._gathered[stage][task.part])
        self._now[stage] = end
        place = task.part * plan.stages + stage + (1 if task.kind == FORWARD else -1)
        if place < 0:
            return None
        if place == plan.stages * plan.virtual:
            self._arrived[stage, Task(BACKWARD, task.part, task.micro_batch)] = end
            return stage
        part, target = divmod(place, plan.stages)
        begun = max(end, self._sent[stage])
        arrived = self._sent[stage] = begun + plan.send_s
        if self._record is not None:
            fields = (*task.fields, ("to_stage", target))
            self._record.spans.append(
                Span(port_of(stage), task.name, begun, arrived, plan.sent_bytes, fields)
            )
        self._now[stage] += plan.open_sends * plan.send_s
        self._arrived[target, Task(task.kind, part, task.micro_batch)] = arrived
        return target

    def _gather(self, stage: int, part: Part) -> float:
        """When the weights of a part are there that are gathered beside the first forwards."""
        seconds = self._plan.data_overlap * part.gather_s
        self._reduced[stage] = self._exchange(stage, "gather", self._reduced[stage], seconds)
        return self._reduced[stage]

    def _end(self, stage: int) -> float:
        """Carry out the exposed part: the rest of the exchange, with the optimizer in between."""
        plan, parts = self._plan, self._plan.parts[stage]
        share, now = 1 - plan.data_overlap, max(self._now[stage], self._reduced[stage])
        now = self._exchange(stage, "reduce rest", now, share * sum(p.reduce_s for p in parts))
        if plan.optimizer_s:
            start, now = now, now + plan.optimizer_s[stage]
            if self._record is not None:
                self._record.spans.append(Span(compute_of(stage), "optimizer", start, now, 0.0))
        return self._exchange(stage, "gather rest", now, share * sum(p.gather_s for p in parts))

    def _exchange(self, stage: int, job: str, start: float, seconds: float) -> float:
        """The end of an exchange among data parallel ranks."""
        if seconds and self._record is not None:
            self._record.spans.append(Span(data_of(stage), job, start, start + seconds, seconds))
        return start + seconds
