"""Requests that come and are answered: continuous batching, round by round.

    IN8   round      each sequence in decode gets a token; what is left of the budget goes to
                     prompts, in order of arrival, in pieces if need be; its time is IN4's
    IN9   piece      of c tokens of a prompt after o others: attention sees c (2 o + c)/2 in all,
                     so it is that of c tokens of prompts of 2 o + c; all pieces add up to a prompt
    IN10  admission  first come, first served, where the batch has a place and memory holds the
                     whole sequence at its end (F1, F3): none is ever evicted
    IN11  stages     p groups of sequences, each in a round of its own; a stage does one of them at
                     a time; a group's next round begins when its last has left the last stage

A prompt's last piece gives its first token. Time to it is from the arrival, with the wait in the
queue; time between tokens is of one sequence. Percentiles are by nearest rank. Groups share the
sequences evenly. Sources: chunked prefill, a budget of tokens for decodes and pieces
of prompts (Agrawal et al., Sarathi-Serve, OSDI 2024; IN8); derived (IN9 to IN11).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import simpy

from luwu.predict.events.engines import Engine, Process, Record
from luwu.predict.hardware.curves import Notes
from luwu.predict.inference.inference import RoundTime, Work, predict_round
from luwu.predict.inference.inference_job import (
    InferenceJob,
    fixed_bytes,
    sequence_bytes,
    weight_bytes,
)

NOT_OF_LAYERS = (
    "output layer", "choice of tokens", "stage exchange", "scheduling", "waiting for stages",
)  # fmt: skip
"""Parts of a round's time; the others are of every layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt that comes, and how long its answer will be."""

    arrive_s: float = 0.0
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecesWork(Work):
    """Work of a round with pieces of several prompts (IN9)."""

    ended: int
    """Prompts of which this is the last piece."""

    @property
    def answers(self) -> float:
        """Tokens that come out."""
        return self.decodes + self.ended


@dataclass(frozen=True, slots=True)
class Round:
    """One of a group."""

    group: int
    start_s: float
    end_s: float
    decodes: int
    prefill_tokens: int
    ended: int
    """Prompts that got their first token."""


@dataclass(frozen=True, slots=True)
class Answer:
    """To a request."""

    request: Request
    first_token_s: float
    """After it arrived."""
    end_s: float
    """When its last token was there."""


@dataclass(frozen=True, slots=True)
class Served:
    """Requests that were answered."""

    record: Record
    rounds: tuple[Round, ...]
    """In the order in which they ended."""
    answers: tuple[Answer, ...]
    """In the order of the requests."""
    between_s: tuple[float, ...]
    """Seconds after the previous token, of all tokens but first ones, sorted."""
    peak_bytes: float
    """On a device: weights, work space, and what was promised to sequences, at most."""
    notes: Notes

    @property
    def end_s(self) -> float:
        """End of the last round."""
        return self.rounds[-1].end_s


def percentile(ordered: Sequence[float], share: float) -> float:
    """By nearest rank; a share of 0.5 is the median."""
    return ordered[math.ceil(share * len(ordered)) - 1]


# ---------------------------------------------------------------------- requests


def requests_at_random(
    count: int, per_s: float, seed: int, input_tokens: int, output_tokens: int
) -> list[Request]:
    """So many a second on the mean, independent of each other (Poisson); a seed gives the same."""
    source, at, found = random.Random(seed), 0.0, []
    for _ in range(count):
        at += source.expovariate(per_s)
        found.append(
            Request(arrive_s=at, input_tokens=input_tokens, output_tokens=output_tokens)
        )  # fmt: skip
    return found


# ---------------------------------------------------------------------- serving


def serve(job: InferenceJob, requests: Iterable[Request]) -> Served:
    """Answer all requests. `job` says on what, its `batch` how many at once, its `budget_tokens`
    how many tokens of a round. Raises ConfigError for a request that never fits."""
    return _World(job, sorted(requests, key=lambda each: each.arrive_s)).serve()


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request that was admitted."""

    index: int
    request: Request
    nbytes: float
    prefilled: int = 0
    made: int = 0
    last_s: float = 0.0
    first_token_s: float = 0.0

    @property
    def unread(self) -> int:
        """Tokens of its prompt."""
        return self.request.input_tokens - self.prefilled


@dataclass(slots=True)
class _Plan:
    """The work of a round."""

    decodes: list[_Sequence] = field(default_factory=list)
    pieces: list[tuple[_Sequence, int]] = field(default_factory=list)

    @property
    def work(self) -> PiecesWork:
        tokens = sum(piece for _, piece in self.pieces)
        seen = sum(piece * (2 * each.prefilled + piece) for each, piece in self.pieces)
        context = sum(each.request.input_tokens + each.made for each in self.decodes)
        return PiecesWork(
            decodes=len(self.decodes), context=context / max(1, len(self.decodes)),
            prefill_tokens=tokens, prompt=seen / tokens if tokens else 1,
            ended=sum(piece == each.unread for each, piece in self.pieces),
        )  # fmt: skip


class _World:
    """The queue, the groups and the stages."""

    def __init__(self, job: InferenceJob, requests: list[Request]) -> None:
        self._job, self._requests = job, requests
        self._env, self._record, self._notes = simpy.Environment(), Record(), Notes()
        self._stages = [
            Engine(self._env, self._record, f"stage {stage}") for stage in range(job.pipeline)
        ]
        self._sizes = {shape: self._bytes_of(*shape) for shape in map(_shape, requests)}
        self._queue: deque[int] = deque()
        self._groups: list[list[_Sequence]] = [[] for _ in range(job.pipeline)]
        self._taken = self._peak = weight_bytes(job) + fixed_bytes(job)
        self._news = self._env.event()
        """Something arrived, or a place is free."""
        self._rounds: list[Round] = []
        self._answers: dict[int, Answer] = {}
        self._between: list[float] = []

    def serve(self) -> Served:
        self._env.process(self._arrive())
        for group in range(self._job.pipeline):
            self._env.process(self._serve(group))
        self._env.run()
        answers = tuple(self._answers[index] for index in range(len(self._requests)))
        return Served(
            self._record, tuple(self._rounds), answers, tuple(sorted(self._between)), self._peak,
            self._notes,
        )  # fmt: skip

    def _bytes_of(self, input_tokens: int, output_tokens: int) -> float:
        """Bytes of such a sequence at its end; checks that memory holds one."""
        one = replace(
            self._job, batch=1, input_tokens=input_tokens, output_tokens=output_tokens
        )  # fmt: skip
        return sequence_bytes(one)

    def _arrive(self) -> Process:
        for index, request in enumerate(self._requests):
            if request.arrive_s > self._env.now:
                yield self._env.timeout(request.arrive_s - self._env.now)
            self._queue.append(index)
            self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, self._env.event()
        news.succeed()

    def _serve(self, group: int) -> Process:
        """Rounds of a group, as long as there is something to do."""
        while len(self._answers) < len(self._requests):
            plan = self._plan(group)
            work = plan.work
            if not work.tokens:
                yield self._news
                continue
            start_s, name = self._env.now, f"group {group} round {len(self._rounds)}"
            time = predict_round(self._job, work)
            self._notes.extrapolated.update(time.notes.extrapolated)
            for engine, seconds in zip(self._stages, stage_seconds(self._job, time), strict=True):
                yield from engine.work(name, seconds, work.tokens)
            self._rounds.append(
                Round(group, start_s, self._env.now, len(plan.decodes), int(work.prefill_tokens),
                      work.ended)
            )  # fmt: skip
            self._end_round(group, plan)

    def _plan(self, group: int) -> _Plan:
        """A group's next round (IN8): decodes, prompts that were begun, new ones."""
        plan, left = _Plan(), self._job.budget_tokens
        plan.decodes = [each for each in self._groups[group] if not each.unread][:left]
        left -= len(plan.decodes)
        begun = deque(each for each in self._groups[group] if each.unread)
        while left:
            sequence = begun.popleft() if begun else self._admit(group)
            if sequence is None:
                break
            piece = min(sequence.unread, left)
            plan.pieces.append((sequence, piece))
            left -= piece
        return plan

    def _admit(self, group: int) -> _Sequence | None:
        """The first in the queue, if there is a place for it (IN10)."""
        active = sum(map(len, self._groups))
        if not self._queue or active >= self._job.batch:
            return None
        whole = min(self._job.batch, active + len(self._queue))
        places = min(-(-whole // self._job.pipeline), self._job.budget_tokens)
        request = self._requests[self._queue[0]]
        nbytes = self._sizes[_shape(request)]
        has_room = self._taken + nbytes <= self._job.device.memory_bytes
        if len(self._groups[group]) >= places or not has_room:
            return None
        sequence = _Sequence(self._queue.popleft(), request, nbytes)
        self._groups[group].append(sequence)
        self._taken += nbytes
        self._peak = max(self._peak, self._taken)
        return sequence

    def _end_round(self, group: int, plan: _Plan) -> None:
        now = self._env.now
        for each in plan.decodes:
            each.made += 1
            self._between.append(now - each.last_s)
            each.last_s = now
        for each, piece in plan.pieces:
            each.prefilled += piece
            if not each.unread:
                each.made, each.last_s = 1, now
                each.first_token_s = now - each.request.arrive_s
        done = [each for each in self._groups[group] if each.made == each.request.output_tokens]
        for each in done:
            self._groups[group].remove(each)
            self._taken -= each.nbytes
            self._answers[each.index] = Answer(each.request, each.first_token_s, now)
        if done:
            self._tell()


def _shape(request: Request) -> tuple[int, int]:
    return request.input_tokens, request.output_tokens


def stage_seconds(job: InferenceJob, time: RoundTime) -> list[float]:
    """Seconds of a round per stage: its layers, scheduling, the send to the next, and in the last
    one the output layer and the choice of tokens. Remaining layers are in the first ones.
    """
    each, more = divmod(job.model.layers, job.pipeline)
    parts = time.parts
    layer_s = sum(
        seconds for name, seconds in parts.items() if name not in NOT_OF_LAYERS
    ) / job.model.layers  # fmt: skip
    send_s = parts["stage exchange"] / max(1, job.pipeline - 1)
    found = []
    for stage in range(job.pipeline):
        seconds = (each + (stage < more)) * layer_s + parts["scheduling"] / job.pipeline
        is_last = stage == job.pipeline - 1
        seconds += parts["output layer"] + parts["choice of tokens"] if is_last else send_s
        found.append(seconds)
    return found
