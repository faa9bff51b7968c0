"""Virtual time and a seeded network: whole clusters in one thread, replayed from one integer.

Everything random is drawn from one generator in the order of events, so a seed replays a history
exactly. Messages pass through the real codec: what the wire cannot carry fails here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from luwu.wire.codec import decode, encode
from luwu.wire.messages import Message


@dataclass(frozen=True)
class Faults:
    """What the network does to messages while faults are on."""

    drop_ratio: float = 0.0
    repeat_ratio: float = 0.0
    delay_ns_max: int = 5_000_000
    """Each message takes a random time up to this, so messages overtake each other."""
    is_ordered: bool = False
    """Messages of one sender to one receiver never overtake each other, as on a connection."""


class Payload:
    """A buffer that knows whether its holder let go of it."""

    live_count = 0

    def __init__(self, array: Any) -> None:
        self.array = array
        self.dropped = False
        Payload.live_count += 1

    def drop(self) -> None:
        assert not self.dropped, "a payload was dropped twice"
        self.dropped = True
        Payload.live_count -= 1

    def read(self) -> Any:
        assert not self.dropped, "a payload was read after it was dropped"
        return self.array


Handler = Callable[[str, Message, Any], None]


class World:
    """The clock, the queue of events and the network between named processes."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.random = Random(seed)
        self.faults = faults
        self.now_ns = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._handlers: dict[str, Handler] = {}
        self._arrival_ns: dict[tuple[str, str], int] = {}
        """When the last message of a link arrives."""
        self.sent_count = 0

    def at(self, delay_ns: int, do: Callable[[], None]) -> None:
        """Do something later."""
        self._order += 1
        heapq.heappush(self._queue, (self.now_ns + delay_ns, self._order, do))

    def soon(self, do: Callable[[], None]) -> None:
        """Do something after a random short time, as work in another thread would."""
        self.at(self.random.randrange(1, 2_000_000), do)

    def listen(self, name: str, handler: Handler) -> None:
        """Deliver what is sent to `name`; a later call replaces a former process."""
        self._handlers[name] = handler

    def silence(self, name: str) -> None:
        """The process is gone: what is sent to it is lost."""
        self._handlers.pop(name, None)

    def send(self, sender: str, receiver: str, message: Message, payload: Any) -> None:
        """Put a message on the wire; the network may lose, repeat, delay and reorder it."""
        self.sent_count += 1
        header = encode(message)
        carried = payload.read().copy() if isinstance(payload, Payload) else payload
        copies = 1
        if self.random.random() < self.faults.drop_ratio:
            copies = 0
        elif self.random.random() < self.faults.repeat_ratio:
            copies = 2
        for _ in range(copies):
            delay_ns = self.random.randrange(1, self.faults.delay_ns_max)
            if self.faults.is_ordered:
                after_ns = self._arrival_ns.get((sender, receiver), 0) + 1
                delay_ns = max(delay_ns, after_ns - self.now_ns)
                self._arrival_ns[sender, receiver] = self.now_ns + delay_ns
            self.at(delay_ns, lambda: self._deliver(sender, receiver, header, carried))

    def run(self, until: Callable[[], bool], *, limit_ns: int) -> None:
        """Let events happen until a condition holds; fails when time is up or nothing is left."""
        while not until():
            assert self._queue, "nothing is left to happen, but the goal is not reached"
            self.now_ns, _, do = heapq.heappop(self._queue)
            assert self.now_ns <= limit_ns, f"not finished after {limit_ns / 1e9:.0f} virtual s"
            do()

    def _deliver(self, sender: str, receiver: str, header: bytes, carried: Any) -> None:
        handler = self._handlers.get(receiver)
        if handler is None:
            return
        message = decode(header, 0 if carried is None else 1)
        is_data = message.IS_DATA and carried is not None
        if is_data and isinstance(carried, bytes):
            carried = np.frombuffer(carried, np.uint8)
        handler(sender, message, Payload(carried) if is_data else carried)


def drop(payload: Any) -> None:
    """What `Drop` asks for; bytes are nobody's."""
    if isinstance(payload, Payload):
        payload.drop()


def payload_bytes(payload: Any) -> int:
    """Bytes of a data payload."""
    if isinstance(payload, Payload):
        return int(payload.array.nbytes)
    return len(payload) if isinstance(payload, bytes) else 0
