"""Engines: what does one job after another, in the order they came, each taking its time.

A record holds every span of every engine, in seconds of virtual time.
An engine is never at two jobs, and does what it was given.

A payload is a `Token`: how many bytes it is, and whether its holder let go of it. A link is
one direction of a connection. Data take their turn on it, one after the other, at its rate, and
arrive after its latency; what carries no data takes the latency alone (headers are thousandths of
what is carried), so it may overtake data, as the cores allow.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import simpy

from luwu.base.retry import RetryPolicy
from luwu.wire.messages import Message

Process: TypeAlias = Generator[simpy.events.Event, Any, None]
JOB: Final = 1
"""Of all cores."""
NEVER: Final = RetryPolicy(first_ns=10**18, most_ns=10**18)
"""Nothing is lost here, so nothing is repeated."""
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

    def work(self, job: str, seconds: float, amount: float = 0.0) -> Process:
        """Wait for a turn, and be at the job for so long; to be yielded from a process."""
        with self._turn.request() as turn:
            yield turn
            start_s = self._env.now
            if self._rival is None:
                yield self._env.timeout(seconds)
            else:
                yield from self._work_beside(self._rival, seconds)
            self._record.spans.append(Span(self.name, job, start_s, self._env.now, amount))

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


class Token:
    """A payload of so many bytes, as cores count them; held by one core."""

    __slots__ = ("cost_bytes", "is_dropped", "is_spilled", "nbytes")

    def __init__(self, nbytes: int, cost_bytes: float | None = None) -> None:
        """`cost_bytes`: what engines and threads take it for, if not `nbytes`."""
        self.nbytes = nbytes
        self.cost_bytes = nbytes if cost_bytes is None else cost_bytes
        self.is_dropped = False
        self.is_spilled = False
        """It lies in a file, and is read back before it is added."""

    def drop(self) -> None:
        """Its holder needs it no more."""
        assert not self.is_dropped, "a core dropped a payload twice"
        self.is_dropped = True

    def copy(self) -> Token:
        """The same at its receiver."""
        return Token(self.nbytes, self.cost_bytes)


Arrived = Callable[[Message, Any, int], None]
"""Takes a message, its payload and how many bytes that has."""


class Link:
    """One direction between a worker and the switch, or the switch and the node; other switches on
    the way are part of it."""

    def __init__(
        self, env: simpy.Environment, record: Record, name: str, *, rate: float | None,
        latency_s: float, arrived: Arrived,
    ) -> None:  # fmt: skip
        """`rate`: None where data take the latency alone, as another link has the narrowest place
        on the way."""
        self._env, self._rate, self._latency_s = env, rate, latency_s
        self._engine = Engine(env, record, name)
        self._arrived = arrived

    def share(self, other: Link, use: float) -> None:
        """Have the two slow each other down if at once they use more than all of what they share:
        `use`, of 1. With several, this one sees the last."""
        if use > 1:
            self._engine.slow_beside(other._engine, 1 / use)
            other._engine.slow_beside(self._engine, 1 / use)

    def send(self, message: Message, payload: Any) -> None:
        """Put a message on the way; its receiver gets a payload of its own."""
        if isinstance(payload, Token) and self._rate is not None:
            self._env.process(self._carry(message, payload))
        else:
            self._after_latency(message, payload)

    def _carry(self, message: Message, payload: Token) -> Process:
        assert self._rate is not None
        name, meant = type(message).__name__.lower(), payload.cost_bytes
        yield from self._engine.work(name, meant / self._rate, meant)
        self._after_latency(message, payload)

    def _after_latency(self, message: Message, payload: Any) -> None:
        token = payload.copy() if isinstance(payload, Token) else payload
        nbytes = token.nbytes if isinstance(token, Token) else 0
        timeout = self._env.timeout(self._latency_s)
        timeout.callbacks.append(lambda _: self._arrived(message, token, nbytes))
