"""Messages between the cores in virtual time: of the wire, with payloads without bytes.

A payload is a `Token`: how many bytes it stands for, and whether its holder let go of it. A link is
one direction of a connection. Data take their turn on it, one after the other, at its rate, and
arrive after its latency; what carries no data takes the latency alone (headers are thousandths of
what is carried), so it may overtake data, as the cores allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

from luwu.predict.driven.engines import Engine, Process, Record
from luwu.wire.messages import DataMessage, Message


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
        assert isinstance(message, DataMessage)
        assert self._rate is not None
        name, meant = type(message).__name__.lower(), payload.cost_bytes
        fields = (("step", message.step), ("extent", message.index))
        yield from self._engine.work(name, meant / self._rate, meant, fields)
        self._after_latency(message, payload)

    def _after_latency(self, message: Message, payload: Any) -> None:
        token = payload.copy() if isinstance(payload, Token) else payload
        nbytes = token.nbytes if isinstance(token, Token) else 0
        timeout = self._env.timeout(self._latency_s)
        timeout.callbacks.append(lambda _: self._arrived(message, token, nbytes))
