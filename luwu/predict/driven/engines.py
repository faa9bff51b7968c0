"""Engines: what does one job after another, in the order they came, each taking its time.

A payload is a `Token`: how many bytes it is, and whether its holder let go of it. Data take their
turn on a link, one after the other, at its rate, and arrive after its latency; what carries no data
takes the latency alone (headers are thousandths of what is carried), so it may overtake data, as
the cores allow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from luwu.base.retry import RetryPolicy
from luwu.predict.model.clock import Clock, Event, Process, Semaphore
from luwu.wire.messages import Message

JOB: Final = 1
"""Of all cores."""
NEVER: Final = RetryPolicy(first_ns=10**18, most_ns=10**18)
"""Nothing is lost here, so nothing is repeated."""


class Engine:
    """Does jobs in the order they are asked for, one at a time."""

    def __init__(self, clock: Clock, name: str) -> None:
        self.name, self._clock, self._turn = name, clock, Semaphore(clock)

    def work(self, seconds: float) -> Process:
        """Wait for a turn, and be at a job for so long; to be yielded from a process."""
        yield self._turn.acquire()
        yield self._clock.at(self._clock.now_s + seconds)
        self._turn.release()


class Token:
    """A payload of so many bytes, as cores count them; held by one core."""

    __slots__ = ("cost_bytes", "is_dropped", "nbytes", "spilled")

    def __init__(self, nbytes: int, cost_bytes: float) -> None:
        """`cost_bytes`: what engines and threads take it for."""
        self.nbytes, self.cost_bytes, self.is_dropped = nbytes, cost_bytes, False
        self.spilled: Event | None = None
        """Once set it is in a file, from which it is read back before it is added."""

    def drop(self) -> None:
        """Its holder needs it no more."""
        assert not self.is_dropped, "a core dropped a payload twice"
        self.is_dropped = True


class Link:
    """One direction between the switch and a worker or the node, with all switches on the way."""

    def __init__(
        self, clock: Clock, name: str, *, arrived: Callable[[Message, Any, int], None],
        rate: float | None = None, latency_s: float = 0.0,
    ) -> None:  # fmt: skip
        """`arrived` takes a message, its payload and its bytes. `rate`: None where data take the
        latency alone, as another link has the narrowest place on the way."""
        self._clock, self._rate, self._latency_s = clock, rate, latency_s
        self._engine = Engine(clock, name)
        self._arrived = arrived

    def send(self, message: Message, payload: Any) -> None:
        """Put a message on the way; its receiver gets a payload of its own."""
        self._clock.start(self._carry(message, payload))

    def _carry(self, message: Message, payload: Any) -> Process:
        nbytes = 0
        if isinstance(payload, Token):
            if self._rate is not None:
                yield from self._engine.work(payload.cost_bytes / self._rate)
            payload, nbytes = Token(payload.nbytes, payload.cost_bytes), payload.nbytes
        arrive_s = self._clock.now_s + self._latency_s
        self._clock.call_at(arrive_s, partial(self._arrived, message, payload, nbytes))
