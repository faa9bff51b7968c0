"""Engines: what does one job after another, in the order they came, each taking its time.

Each job is a span, in seconds of virtual time.

A payload is a `Token`: how many bytes it is, and whether its holder let go of it. A link is
one direction of a connection. Data take their turn on it, one after the other, at its rate, and
arrive after its latency; what carries no data takes the latency alone (headers are thousandths of
what is carried), so it may overtake data, as the cores allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from luwu.base.retry import RetryPolicy
from luwu.predict.driven.clock import Clock, Event, Process, Semaphore
from luwu.wire.messages import Message

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


class Engine:
    """Does jobs in the order they are asked for, one at a time."""

    def __init__(self, clock: Clock, spans: list[Span], name: str) -> None:
        self.name = name
        self._clock, self._spans, self._turn = clock, spans, Semaphore(clock)
        self._rival: Engine | None = None
        self._rate = 1.0
        self._is_at_work = False
        self._changes: list[Event] = []
        """Set when it begins or ends a job."""

    def slow_beside(self, rival: Engine, rate: float) -> None:
        """Work at this rate while the other engine works."""
        self._rival, self._rate = rival, rate

    def work(self, job: str, seconds: float, amount: float = 0.0) -> Process:
        """Wait for a turn, and be at the job for so long; to be yielded from a process."""
        yield self._turn.acquire()
        start_s = self._clock.now_s
        if self._rival is None:
            yield self._clock.timeout(seconds)
        else:
            yield from self._work_beside(self._rival, seconds)
        self._spans.append(Span(self.name, job, start_s, self._clock.now_s, amount))
        self._turn.release()

    def _work_beside(self, rival: Engine, seconds: float) -> Process:
        self._set_at_work(True)
        left_s = seconds
        while left_s > ROUNDING * seconds:
            rate = self._rate if rival._is_at_work else 1.0
            start_s, end_s = self._clock.now_s, self._clock.now_s + left_s / rate
            rival._changes.append(end := self._clock.timeout(left_s / rate))
            yield end
            now_s = self._clock.now_s
            left_s = left_s - rate * (now_s - start_s) if now_s < end_s else 0.0
        self._set_at_work(False)

    def _set_at_work(self, is_at_work: bool) -> None:
        self._is_at_work, changes, self._changes = is_at_work, self._changes, []
        for event in changes:
            event.set()


class Token:
    """A payload of so many bytes, as cores count them; held by one core."""

    __slots__ = ("cost_bytes", "is_dropped", "nbytes", "spilled")

    def __init__(self, nbytes: int, cost_bytes: float | None = None) -> None:
        """`cost_bytes`: what engines and threads take it for, if not `nbytes`."""
        self.nbytes = nbytes
        self.cost_bytes = nbytes if cost_bytes is None else cost_bytes
        self.is_dropped = False
        self.spilled: Event | None = None
        """Once set it is in a file, from which it is read back before it is added."""

    def drop(self) -> None:
        """Its holder needs it no more."""
        assert not self.is_dropped, "a core dropped a payload twice"
        self.is_dropped = True

    def copy(self) -> Token:
        """The same at its receiver."""
        return Token(self.nbytes, self.cost_bytes)


class Link:
    """One direction between a worker and the switch, or the switch and the node; other switches on
    the way are part of it."""

    def __init__(
        self, clock: Clock, spans: list[Span], name: str, *,
        arrived: Callable[[Message, Any, int], None], rate: float | None = None,
        latency_s: float = 0.0,
    ) -> None:  # fmt: skip
        """`arrived` takes a message, its payload and its bytes. `rate`: None where data take the
        latency alone, as another link has the narrowest place on the way."""
        self._clock, self._rate, self._latency_s = clock, rate, latency_s
        self._engine = Engine(clock, spans, name)
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
            self._clock.start(self._carry(message, payload, self._rate))
        else:
            self._after_latency(message, payload)

    def _carry(self, message: Message, payload: Token, rate: float) -> Process:
        name, nbytes = type(message).__name__.lower(), payload.cost_bytes
        yield from self._engine.work(name, nbytes / rate, nbytes)
        self._after_latency(message, payload)

    def _after_latency(self, message: Message, payload: Any) -> None:
        token = payload.copy() if isinstance(payload, Token) else payload
        nbytes = token.nbytes if isinstance(token, Token) else 0
        self._clock.call_after(self._latency_s, partial(self._arrived, message, token, nbytes))
