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
from itertools import chain
from typing import Any, NamedTuple

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
    numbers = _order(stage, stages, virtual, micro_batches)
    return [_task(number, stages, virtual, micro_batches) for number in numbers]


def _order(stage: int, stages: int, virtual: int, micro_batches: int) -> list[int]:
    """The same tasks as numbers.

    A micro-batch passes 2 p v places: forward through the p v parts of the model, and backward
    through them. At place x, micro-batch i is number x m + i; its output is the input of number
    (x + 1) m + i.
    """
    at_once = stages if virtual > 1 else micro_batches
    assert micro_batches % at_once == 0, "interleaved, stages divide the micro-batches"
    forward = range(stage, stages * virtual, stages)
    backward = range(stages * virtual + stages - 1 - stage, 2 * stages * virtual, stages)
    forwards, backwards = (
        [
            place * micro_batches + micro_batch
            for start in range(0, micro_batches, at_once)
            for place in places
            for micro_batch in range(start, start + at_once)
        ]
        for places in (forward, backward)
    )
    first = stages - 1 - stage
    if virtual > 1:
        first = 2 * first + (virtual - 1) * stages
    first = min(first, len(forwards))
    in_turn = zip(forwards[first:], backwards, strict=False)
    return [
        *forwards[:first], *chain.from_iterable(in_turn), *backwards[len(forwards) - first :],
    ]  # fmt: skip


def _task(number: int, stages: int, virtual: int, micro_batches: int) -> Task:
    """The task of a number."""
    place, micro_batch = divmod(number, micro_batches)
    if place < stages * virtual:
        return Task(FORWARD, place // stages, micro_batch)
    return Task(BACKWARD, (2 * stages * virtual - 1 - place) // stages, micro_batch)


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
    """Ends of tasks, as far as they are known. Tasks are numbers (`_order`): a plan plays up to a
    million of them."""

    def __init__(self, plan: Pipeline, record: Record | None) -> None:
        self._plan, self._record = plan, record
        self._shape = plan.stages, plan.virtual, plan.micro_batches
        stages, places = range(plan.stages), range(2 * plan.stages * plan.virtual)
        stage_of = [min(place, places[-1] - place) % plan.stages for place in places]
        self._seconds = [
            plan.seconds(stage, self._task(place * plan.micro_batches))
            for place, stage in enumerate(stage_of)
        ]
        """Seconds of a task, by its place."""
        self._receivers: list[int | None] = [*stage_of[1:], None]
        """The stage that outputs of a place are sent to; None: backward begins or ends there."""
        self._receivers[len(places) // 2 - 1] = None
        self._orders = [iter([*_order(stage, *self._shape), -1]) for stage in stages]
        """Tasks of each stage that are left, and -1: the input of this one never arrives."""
        self._reduced = [0.0] * plan.stages
        """When the exchange beside compute is done with what it has."""
        self._gathered = [[self._gather(stage, part) for part in plan.parts[stage]]
                          for stage in stages]  # fmt: skip
        self._now = [0.0] * plan.stages
        self._sent = [0.0] * plan.stages
        """When the port of a stage is done with what it has."""
        self._arrived: list[float | None] = [None] * ((len(places) + 1) * plan.micro_batches + 1)
        """When the input of each task is there; behind all tasks, when a micro-batch is done."""
        self._arrived[: plan.micro_batches] = [0.0] * plan.micro_batches

    def _task(self, number: int) -> Task:
        return _task(number, *self._shape)

    def ends(self) -> list[float]:
        """The ends of all stages."""
        plan, is_told = self._plan, self._record is not None
        arrived, seconds, receivers = self._arrived, self._seconds, self._receivers
        m, turn, send_s = plan.micro_batches, len(seconds) // 2, plan.send_s
        last, open_s = m - 1, plan.open_sends * send_s
        next_of = [next(order) for order in self._orders]
        waiting = deque(range(plan.stages))
        while waiting:
            stage = waiting.popleft()
            number = next_of[stage]
            start = arrived[number]
            if start is None:
                continue
            now, sent, order = self._now[stage], self._sent[stage], self._orders[stage]
            while start is not None:
                start = now if now > start else start  # max() takes ten times as long
                place, micro_batch = number // m, number % m
                if micro_batch == last and place >= turn:
                    self._reduce(stage, number, start)
                now = start + seconds[place]
                if is_told:
                    self._tell(compute_of(stage), number, start, now, 1.0)
                if micro_batch == 0 and place < turn:
                    now = max(now, self._gathered[stage][place // plan.stages])
                receiver = receivers[place]
                if receiver is None:
                    arrived[number + m] = now
                else:
                    begun = now if now > sent else sent
                    arrived[number + m] = sent = begun + send_s
                    if is_told:
                        to = ("to_stage", receiver)
                        self._tell(port_of(stage), number, begun, sent, plan.sent_bytes, to)
                    now += open_s
                    waiting.append(receiver)
                number = next(order)
                start = arrived[number]
            next_of[stage], self._now[stage], self._sent[stage] = number, now, sent
        return [self._end(stage) for stage in range(plan.stages)]

    def _tell(
        self, engine: str, number: int, start: float, end: float, amount: float,
        *fields: tuple[str, Any],
    ) -> None:  # fmt: skip
        """Record that an engine was at a task."""
        assert self._record is not None
        task = self._task(number)
        self._record.spans.append(
            Span(engine, task.name, start, end, amount, (*task.fields, *fields))
        )

    def _reduce(self, stage: int, number: int, start: float) -> None:
        """Reduce the gradients of a part from the start of its last backward on."""
        part = self._task(number).part
        seconds = self._plan.data_overlap * self._plan.parts[stage][part].reduce_s
        before = max(start, self._reduced[stage])
        self._reduced[stage] = self._exchange(stage, f"reduce part {part}", before, seconds)

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
