"""`[arrivals]` of a question of inference: requests that come one by one, and are played.

Continuous batching is played round by round, as first tokens under
load hang on what is before them in the queue, which no closed form knows:

    IN8   round      each sequence in decode gets a token; what is left of the budget goes to
                     prompts, in order of arrival, in pieces if need be; its time is IN4's
    IN9   piece      of c tokens of a prompt after o others: attention sees c (2 o + c)/2 in all,
                     so it is that of c tokens of prompts of 2 o + c; all pieces add up to a prompt
    IN10  admission  first come, first served, where the batch has a place: a batch is one that
                     memory holds at its end (F3), so none is ever evicted
    IN11  stages     p groups of sequences, each in a round of its own; a stage does one of them at
                     a time; a group's next round begins when its last has left the last stage

A prompt's last piece gives its first token. Percentiles are by nearest rank; of concurrent users
without the first request of each, as these begin at once.
Source: Agrawal et al., Sarathi-Serve, OSDI 2024 (IN8); derived (IN9 to IN11).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import accumulate
from statistics import fmean
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.predict.hardware.values import check_keys, whole_of
from luwu.predict.inference.inference import Work, predict_round
from luwu.predict.inference.inference_job import InferenceJob
from luwu.predict.model.clock import Clock, Process
from luwu.predict.model.job import StepTime

REQUESTS: Final = 500
"""The default; 150,000 rounds of a copy take some 8 s."""
_PLACE: Final = "arrivals."
_KEYS: Final = ("per_second", "concurrent", "requests", "seed")
_NOT_OF_LAYERS: Final = ("output layer", "stage exchange", "scheduling", "waiting for stages")
"""Parts of a round's time; the others are of every layer."""
_SHARES: Final = {"median": 0.5, "p95": 0.95, "p99": 0.99}
_TIMES: Final = {
    "first token": "first_token_s", "between tokens": "token_s", "whole answer": "answer_s",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Requests that come."""

    per_second: float | None = None
    concurrent: int | None = None
    requests: int = REQUESTS
    seed: int = 0

    def times_s(self) -> list[float]:
        """When each comes (Poisson); or the first of each user."""
        if self.concurrent is not None:
            return [0.0] * self.concurrent
        source, rate = random.Random(self.seed), self.per_second
        assert rate is not None  # `make_arrivals` takes one of the two
        return list(accumulate(source.expovariate(rate) for _ in range(self.requests)))

    def play(self, job: InferenceJob) -> Played:
        """Play the requests. Raises ConfigError."""
        users = self.concurrent or 0
        if self.requests < 2 * users:
            raise ConfigError(
                f"{_PLACE}requests: {self.requests} of {users} concurrent users; {2 * users} or "
                "more fit"
            )
        return serve(job, self.times_s(), self.requests - users if users else 0)


def make_arrivals(table: Mapping[str, Any], job: InferenceJob) -> Arrivals:
    """Arrivals of a table. Raises ConfigError, which names the key."""
    check_keys(_PLACE, table, _KEYS, ())
    if ("per_second" in table) == ("concurrent" in table):
        raise ConfigError("[arrivals]: give per_second or concurrent, one of the two")
    if job.batching != "continuous":
        raise ConfigError(
            f"[arrivals] with batching {job.batching!r}, of which all begin as one: only "
            'batching = "continuous" takes requests as they come'
        )
    rate, seed = table.get("per_second"), table.get("seed", 0)
    if rate is not None and (type(rate) not in (int, float) or not 0 < rate < math.inf):
        raise ConfigError(f"{_PLACE}per_second: {rate!r}; a number above 0 fits")
    if type(seed) is not int:
        raise ConfigError(f"{_PLACE}seed: {seed!r} is not a whole number")
    counts = ("requests", "concurrent")
    whole = {key: whole_of(_PLACE, table, key) for key in counts if key in table}
    return Arrivals(per_second=rate if rate is None else float(rate), seed=seed, **whole)


@dataclass(slots=True)
class Played:
    """Requests that were answered."""

    first_token_s: list[float] = field(default_factory=list)
    """After each arrived."""
    answer_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)
    """Seconds after the token before, of all tokens but first ones."""
    end_s: float = 0.0
    """When the last token was there."""


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request that was admitted."""

    arrive_s: float
    unread: int
    """Tokens of its prompt."""
    made: int = 0
    last_s: float = 0.0


@dataclass(slots=True)
class _Round:
    """The work of a group's round."""

    decodes: list[_Sequence]
    pieces: list[tuple[_Sequence, int]] = field(default_factory=list)

    def work(self, prompt: int) -> Work:
        """As the closed form takes it (IN9)."""
        tokens = sum(piece for _, piece in self.pieces)
        seen = sum(piece * (2 * (prompt - each.unread) + piece) for each, piece in self.pieces)
        context = sum(prompt + each.made for each in self.decodes)
        return Work(
            decodes=len(self.decodes), context=context / max(1, len(self.decodes)),
            prefill_tokens=tokens, prompt=seen / tokens if tokens else 1,
            ended=sum(piece == each.unread for each, piece in self.pieces),
        )  # fmt: skip


def serve(job: InferenceJob, times_s: Sequence[float], more: int = 0) -> Played:
    """Answer requests that come at these times, and so many more, each as another is answered."""
    world = _World(job, more)
    for time_s in times_s:
        world.clock.call_at(time_s, partial(world.arrive, time_s))
    world.clock.run()
    return world.served


class _World:
    """The queue, the groups and the stages."""

    def __init__(self, job: InferenceJob, more: int) -> None:
        self._job, self._more, self.served, self.clock = job, more, Played(), Clock()
        self._queue: deque[float] = deque()
        self._groups: list[list[_Sequence]] = [[] for _ in range(job.pipeline)]
        self._idle = set(range(job.pipeline))
        self._free_s = [0.0] * job.pipeline
        """When each stage is."""

    def arrive(self, time_s: float) -> None:
        """A request comes; all that come at once wait before one is served."""
        self._queue.append(time_s)
        self.clock.call_at(time_s, self._wake)

    def _wake(self) -> None:
        """Something arrived, or a place is free."""
        for group in sorted(self._idle):
            self._begin(group)

    def _begin(self, group: int) -> None:
        """A group's next round (IN8): decodes, prompts that were begun, new ones."""
        left, active = self._job.budget_tokens, self._groups[group]
        plan = _Round([each for each in active if not each.unread][:left])
        left -= len(plan.decodes)
        begun = deque(each for each in active if each.unread)
        while left:
            sequence = begun.popleft() if begun else self._admit(group)
            if sequence is None:
                break
            piece = min(sequence.unread, left)
            plan.pieces.append((sequence, piece))
            left -= piece
        work = plan.work(self._job.input_tokens)
        if not work.tokens:
            self._idle.add(group)
            return
        self._idle.discard(group)
        seconds = stage_seconds(self._job, predict_round(self._job, work))
        self.clock.start(self._pass(group, plan, seconds))

    def _admit(self, group: int) -> _Sequence | None:
        """The first in the queue, if there is a place for it (IN10)."""
        active = sum(map(len, self._groups))
        whole = min(self._job.batch, active + len(self._queue))
        places = min(-(-whole // self._job.pipeline), self._job.budget_tokens)
        if not self._queue or active >= self._job.batch or len(self._groups[group]) >= places:
            return None
        sequence = _Sequence(self._queue.popleft(), self._job.input_tokens)
        self._groups[group].append(sequence)
        return sequence

    def _pass(self, group: int, plan: _Round, seconds: list[float]) -> Process:
        """Go through each stage when it is free (IN11)."""
        for stage, stage_s in enumerate(seconds):
            self._free_s[stage] = max(self.clock.now_s, self._free_s[stage]) + stage_s
            yield self.clock.at(self._free_s[stage])
        now, served = self.clock.now_s, self.served
        for each in plan.decodes:
            each.made += 1
            served.between_s.append(now - each.last_s)
            each.last_s = now
        for each, piece in plan.pieces:
            each.unread -= piece
            if not each.unread:
                each.made, each.last_s = 1, now
                served.first_token_s.append(now - each.arrive_s)
        done = [each for each in self._groups[group] if each.made == self._job.output_tokens]
        for each in done:
            self._groups[group].remove(each)
            served.answer_s.append(now - each.arrive_s)
        following = done[: self._more]
        self._more -= len(following)
        self._queue.extend(now for _ in following)
        served.end_s = now
        self._begin(group)
        if done:
            self.clock.call_at(now, self._wake)


def stage_seconds(job: InferenceJob, time: StepTime) -> list[float]:
    """Seconds of a round per stage: its layers, scheduling, the send to the next, and in the last
    one the output layer. Remaining layers are in the first ones."""
    each, more = divmod(job.model.layers, job.pipeline)
    parts, last = time.parts, job.pipeline - 1
    layers_s = sum(seconds for name, seconds in parts.items() if name not in _NOT_OF_LAYERS)
    layer_s, round_s = layers_s / job.model.layers, parts["scheduling"] / job.pipeline
    ends_s = [parts["stage exchange"] / max(1, last)] * last + [parts["output layer"]]
    return [
        (each + (stage < more)) * layer_s + round_s + end_s for stage, end_s in enumerate(ends_s)
    ]


def arrivals_document(
    arrivals: Arrivals, job: InferenceJob, played: Played, bound_per_second: float
) -> dict[str, Any]:
    """Document of a played system; `bound_per_second`: requests by the closed form."""
    first = arrivals.concurrent or 0
    return {
        **asdict(arrivals),
        "bound_per_second": bound_per_second,
        "is_overloaded": (arrivals.per_second or 0) >= bound_per_second,
        "first_token_s": _percentiles(played.first_token_s[first:]),
        "token_s": _percentiles(played.between_s),
        "answer_s": _percentiles(played.answer_s[first:]),
        "tokens_per_s": arrivals.requests * job.output_tokens / played.end_s,
    }


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """By nearest rank. None: no values, as answers of one token have no time between tokens."""
    ordered = sorted(values)
    if not ordered:
        return None
    ranks = {name: math.ceil(share * len(ordered)) for name, share in _SHARES.items()}
    return {"mean": fmean(values), **{name: ordered[rank - 1] for name, rank in ranks.items()}}


def arrivals_text(document: dict[str, Any]) -> list[str]:
    """For people."""
    users, rate = document["concurrent"], document["per_second"]
    came = f"{rate:g} requests per second" if users is None else f"{users:,} users at once"
    shares = ("mean", *_SHARES)
    lines = [
        f"{came}, of at most {document['bound_per_second']:,.2f} requests per second "
        f"({document['requests']:,} simulated, seed {document['seed']}):",
        f"  {'':<18}" + "".join(f"{name:>14}" for name in shares),
    ]
    for name, key in _TIMES.items():
        found = document[key]
        if found is not None:
            lines.append(
                f"  {name:<18}" + "".join(f"{1e3 * found[share]:>11,.2f} ms" for share in shares)
            )
    return [
        *lines,
        f"  {document['tokens_per_s']:,.0f} tokens per second, to the end of the last answer",
    ]
