"""Virtual time and a seeded network: whole clusters in one thread, replayed from one integer.

Everything random is drawn from one generator in the order of events, so a seed replays a history
exactly. Messages pass through the real codec: what the wire cannot carry fails here.

A *process* has names, under which it is sent to, and an account of the payloads that it holds. One
that is stalled does nothing; what comes for it waits, and is done when it goes on. A name that a
later process takes over is that of another connection: what the former sent and what is still
under way is lost, as it is where a connection ends.
"""

from __future__ import annotations

import functools
import heapq
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from luwu.base.errors import RemoteProtocolError
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
    flip_ratio: float = 0.0
    """A bit of the message flips. Who carries it has a checksum or a seal (design note 0028), so
    the message is lost; `World.flips_pass` is the world without."""


ROUGH = Faults(drop_ratio=0.1, repeat_ratio=0.1, delay_ns_max=30_000_000)


class Account:
    """Payload bytes that one process holds: O5."""

    def __init__(self, name: str = "", bytes_max: int | None = None) -> None:
        self.name, self.bytes_max = name, bytes_max
        self.bytes_now = 0

    def add(self, nbytes: int) -> None:
        self.bytes_now += nbytes
        if self.bytes_max is not None:
            assert self.bytes_now <= self.bytes_max, (
                f"O5: {self.name} holds {self.bytes_now} bytes of payload, at most {self.bytes_max}"
            )

    def take(self, nbytes: int) -> None:
        self.bytes_now -= nbytes


class Payload:
    """A buffer that knows whether its holder let go of it."""

    live_count = 0

    def __init__(self, array: Any, account: Account | None = None) -> None:
        self.array = array
        self._holders_count = 1
        self._account = account
        Payload.live_count += 1
        if account is not None:
            account.add(array.nbytes)

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    @property
    def dropped(self) -> bool:
        return self._holders_count == 0

    def share(self) -> Payload:
        """One more holder."""
        assert not self.dropped, "a payload was shared after it was dropped"
        self._holders_count += 1
        return self

    def drop(self) -> None:
        assert not self.dropped, "a payload was dropped twice"
        self._holders_count -= 1
        if self.dropped:
            Payload.live_count -= 1
            self.leave_memory()

    def leave_memory(self) -> None:
        """It is dropped, or was spilled to a file: it takes no memory any more."""
        if self._account is not None:
            self._account.take(self.array.nbytes)
            self._account = None

    def read(self) -> Any:
        assert not self.dropped, "a payload was read after it was dropped"
        return self.array


class Process:
    """Something that runs, stalls, and ends."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self.name = world, name
        self.alive = True
        self.account = Account(name)
        self._waiting: list[Callable[[], None]] | None = None
        """While it is stalled: what came for it."""

    @property
    def is_stalled(self) -> bool:
        return self._waiting is not None

    def enter(self, do: Callable[[], None]) -> None:
        """Do something in this process, when it runs again; never, if it has ended."""
        if not self.alive:
            return
        if self._waiting is None:
            do()
        else:
            self._waiting.append(do)

    def later(self, do: Callable[[], None]) -> None:
        """Do something in this process after a random short time."""
        self._world.soon(lambda: self.enter(do))

    def stall(self) -> None:
        """Do nothing from now on."""
        if self._waiting is None:
            self._waiting = []

    def go_on(self) -> None:
        """Run again, and do what waits."""
        waiting, self._waiting = self._waiting or [], None
        for do in waiting:
            self.enter(do)

    def kill(self) -> None:
        """End, at once."""
        self.alive = False
        self._world.silence(self)

    def tick(self) -> None:
        """Time has passed."""
        raise NotImplementedError


Handler = Callable[[str, Message, Any], None]

STRANGERS = ("stranger-0", "stranger-1", "stranger-2")
"""Connections that nobody knows; what they say may be unreadable."""


class World:
    """The clock, the queue of events and the network between named processes."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.random = Random(seed)
        self.faults = faults
        self.proposed = 0
        """Bitmap of the nodes that a switch last asked to take an epoch over."""
        self.now_ns = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._handlers: dict[str, tuple[Handler, Process | None]] = {}
        self._starts: dict[str, int] = {}
        """How often a name was taken."""
        self.cuts: set[tuple[str, str]] = set()
        """(sender, receiver) between whom nothing passes, by the names that they started with."""
        self.flips_pass = False
        """Nothing below checks what it carries: a flipped bit arrives."""
        self.eavesdropper: Callable[[str, str, Message, Any], None] | None = None
        """Hears everything that is sent."""
        self._arrival_ns: dict[tuple[str, str], int] = {}
        """When the last message of a link arrives."""
        self.sent_count = self.flipped_count = 0

    def at(self, delay_ns: int, do: Callable[[], None]) -> None:
        """Do something later."""
        self._order += 1
        heapq.heappush(self._queue, (self.now_ns + delay_ns, self._order, do))

    def is_there(self, name: str) -> bool:
        """True if a process of that name is alive."""
        _, process = self._handlers.get(name, (None, None))
        return process is not None and process.alive

    def soon(self, do: Callable[[], None]) -> None:
        """Do something after a random short time, as work in another thread would."""
        self.at(self.random.randrange(1, 2_000_000), do)

    def listen(self, name: str, handler: Handler, process: Process | None = None) -> None:
        """Deliver what is sent to `name`; a later call replaces a former process."""
        self._handlers[name] = (handler, process)
        self._starts[name] = self._starts.get(name, 0) + 1

    def silence(self, gone: str | Process) -> None:
        """A name, or a process with all its names, is gone: what is sent to it is lost."""
        for name in [n for n, (_, process) in self._handlers.items() if gone in (n, process)]:
            del self._handlers[name]

    def send(self, sender: str, receiver: str, message: Message, payload: Any) -> None:
        """Put a message on the wire; the network may lose, repeat, delay and reorder it."""
        self.sent_count += 1
        if self.eavesdropper is not None:
            self.eavesdropper(sender, receiver, message, payload)
        header = _encoded(message)
        carried = payload.read().copy() if isinstance(payload, Payload) else payload
        copies = 1
        if self.random.random() < self.faults.drop_ratio:
            copies = 0
        elif self.random.random() < self.faults.repeat_ratio:
            copies = 2
        start = self._starts.get(sender, 0)
        for _ in range(copies):
            delay_ns = self.random.randrange(1, self.faults.delay_ns_max)
            if self.faults.is_ordered:
                after_ns = self._arrival_ns.get((sender, receiver), 0) + 1
                delay_ns = max(delay_ns, after_ns - self.now_ns)
                self._arrival_ns[sender, receiver] = self.now_ns + delay_ns
            self.at(delay_ns, lambda: self._deliver(sender, start, receiver, header, carried))

    def run(self, until: Callable[[], bool], *, limit_ns: int) -> None:
        """Let events happen until a condition holds; fails when time is up or nothing is left."""
        while not until():
            assert self._queue, "nothing is left to happen, but the goal is not reached"
            self.now_ns, _, do = heapq.heappop(self._queue)
            assert self.now_ns <= limit_ns, f"not finished after {limit_ns / 1e9:.0f} virtual s"
            do()

    def _deliver(self, sender: str, start: int, receiver: str, header: bytes, carried: Any) -> None:
        handler, process = self._handlers.get(receiver, (None, None))
        if handler is None or self._starts.get(sender, 0) != start:
            return
        if self.cuts and (started_as(sender), started_as(receiver)) in self.cuts:
            return
        if self.faults.flip_ratio and self.random.random() < self.faults.flip_ratio:
            self.flipped_count += 1
            if not self.flips_pass or not isinstance(carried, np.ndarray):
                return
            carried = carried.copy()
            carried.view(np.uint8)[self.random.randrange(carried.nbytes)] ^= 64
        if process is None:
            self._hand_over(handler, None, sender, header, carried)
        else:
            process.enter(lambda: self._hand_over(handler, process, sender, header, carried))

    @staticmethod
    def _hand_over(
        handler: Handler, process: Process | None, sender: str, header: bytes, carried: Any
    ) -> None:
        try:
            message = _decoded(header, 0 if carried is None else 1)
        except RemoteProtocolError:
            if started_as(sender) in STRANGERS:
                return  # as a shell does: refused before any core sees it
            raise
        is_data = message.IS_DATA and carried is not None
        if is_data and isinstance(carried, bytes):
            carried = np.frombuffer(carried, np.uint8)
        account = None if process is None else process.account
        handler(sender, message, Payload(carried, account) if is_data else carried)


# What is said to several peers, or again, passes through the codec once: it is half of the time.
_encoded = functools.lru_cache(maxsize=4096)(encode)
_decoded = functools.lru_cache(maxsize=4096)(decode)


def started_as(name: str) -> str:
    """The process behind the name of a connection: `worker-1#2'` is a connection of `worker-1`."""
    return re.split(r"[.#']", name, maxsplit=1)[0]


def drop(payload: Any) -> None:
    """What `Drop` asks for; bytes are nobody's."""
    if isinstance(payload, Payload):
        payload.drop()


def payload_bytes(payload: Any) -> int:
    """Bytes of a data payload."""
    if isinstance(payload, Payload):
        return int(payload.array.nbytes)
    return len(payload) if isinstance(payload, bytes) else 0
