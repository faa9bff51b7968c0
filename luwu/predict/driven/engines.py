"""Engines: what does one job after another, in the order they came, each taking its time.

A record holds every span of every engine, in seconds of virtual time.
An engine is never at two jobs, and does what it was given.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import simpy

Process: TypeAlias = Generator[simpy.events.Event, Any, None]
Fields: TypeAlias = tuple[tuple[str, Any], ...]
ROUNDING: Final = 1e-12
"""Share of a job that is too little to be left of it."""


@dataclass(frozen=True, slots=True)
class Span:
    """An engine was at a job."""

    engine: str
    job: str
    start_s: float
    end_s: float
    amount: float
    """Bytes, or another count of the engine."""
    fields: Fields = ()
    """What the job is of: step, unit, extent, chunk."""


@dataclass(slots=True)
class Record:
    """All spans, in the order in which they ended."""

    spans: list[Span] = field(default_factory=list)

    def of(self, engine: str) -> list[Span]:
        """The spans of an engine."""
        return [span for span in self.spans if span.engine == engine]

    def busy_s(self, engine: str) -> float:
        """Seconds at work."""
        return sum(span.end_s - span.start_s for span in self.of(engine))

    def amount(self, engine: str) -> float:
        """All that it did."""
        return sum(span.amount for span in self.of(engine))

    @property
    def end_s(self) -> float:
        """When the last job was done."""
        return max((span.end_s for span in self.spans), default=0.0)


class Engine:
    """Does jobs in the order they are asked for, one at a time."""

    def __init__(self, env: simpy.Environment, record: Record, name: str) -> None:
        self.name = name
        self._env, self._record = env, record
        self._turn = simpy.Resource(env)
        self._rival: Engine | None = None
        self._rate = 1.0
        self._is_at_work = False
        self._changed = env.event()
        """It begins or ends a job; a new event for each time."""

    def slow_beside(self, rival: Engine, rate: float) -> None:
        """Work at this rate while the other engine works."""
        self._rival, self._rate = rival, rate

    def work(self, job: str, seconds: float, amount: float = 0.0, fields: Fields = ()) -> Process:
        """Wait for a turn, and be at the job for so long; to be yielded from a process."""
        with self._turn.request() as turn:
            yield turn
            start_s = self._env.now
            if self._rival is None:
                yield self._env.timeout(seconds)
            else:
                yield from self._work_beside(self._rival, seconds)
            self._record.spans.append(Span(self.name, job, start_s, self._env.now, amount, fields))

    def _work_beside(self, rival: Engine, seconds: float) -> Process:
        self._set_at_work(True)
        left_s = seconds
        while left_s > ROUNDING * seconds:
            rate = self._rate if rival._is_at_work else 1.0
            start_s, done = self._env.now, self._env.timeout(left_s / rate)
            yield done | rival._changed
            left_s = 0.0 if done.processed else left_s - rate * (self._env.now - start_s)
        self._set_at_work(False)

    def _set_at_work(self, is_at_work: bool) -> None:
        self._is_at_work, changed = is_at_work, self._changed
        self._changed = self._env.event()
        changed.succeed()
