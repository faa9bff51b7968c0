"""What passes between the cores in virtual time: messages of the wire, payloads without bytes.

A payload is a `Token`: how many bytes it stands for, and whether its holder let go of it. A link is
one direction of a connection. Data take their turn on it, one after the other, at its rate, and
arrive after its latency; what carries no data takes the latency alone (headers are thousandths of
what is carried), so it may overtake data, as the cores allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

from luwu.predict.events.engines import Engine, Process, Record
from luwu.wire.messages import DataMessage, Message


class Token:
    """A payload of so many bytes, as cores count them; held by one core."""

    __slots__ = ("is_dropped", "is_spilled", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.is_dropped = False
        self.is_spilled = False
        """It lies in a file, and is read back before it is added."""

    def drop(self) -> None:
        """Its holder needs it no more."""
        assert not self.is_dropped, "a core dropped a payload twice"
        self.is_dropped = True


Arrived = Callable[[Message, Any, int], None]
"""Told of a message, its payload and how many bytes that has."""


class Link:
    """One direction between node and worker; switches on the way are part of it."""

    def __init__(
        self, env: simpy.Environment, record: Record, name: str, *, rate: float, latency_s: float,
        scale: int = 1,
    ) -> None:  # fmt: skip
        """`scale`: bytes that each byte of a token stands for."""
        self._env, self._scale = env, scale
        self._engine = Engine(env, record, name)
        self._rate, self._latency_s = rate, latency_s
        self.arrived: Arrived | None = None

    def send(self, message: Message, payload: Any) -> None:
        """Put a message on the way; its receiver gets a payload of its own."""
        nbytes = payload.nbytes if isinstance(payload, Token) else 0
        self._env.process(self._carry(message, payload, nbytes))

    def _carry(self, message: Message, payload: Any, nbytes: int) -> Process:
        if nbytes:
            assert isinstance(message, DataMessage)
            name = type(message).__name__.lower()
            fields = (("step", message.step), ("chunk", message.chunk))
            meant = nbytes * self._scale
            yield from self._engine.work(name, meant / self._rate, meant, fields)
        yield self._env.timeout(self._latency_s)
        assert self.arrived is not None
        self.arrived(message, Token(nbytes) if nbytes else payload, nbytes)
