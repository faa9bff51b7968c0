"""One direction of an emulated link: a message and a time in, its arrivals out.

    offered -> dropped      the queue is full
            -> leaving      one after the other, at the rate; a copy made by the network too
            -> lost         after it has left
            -> in flight    for the delay, jitter, and the messages that overtake it
            -> received     reported by the holder with `delivered`

Pure: the caller holds the messages and passes the time and a source of random numbers.

Invariants; the tests cite them by number:

    L1  sent + repeated = received + dropped + in flight, in messages and in bytes, at any time.
    L2  Bytes never leave faster than the rate, copies included.
    L3  A message is overtaken by at most `reorder_window` later ones; by none if that is 0.
    L4  The same offers and the same random numbers give the same arrivals.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from luwu.base.links import LinkSpec

_DROPPED = ("lost", "overflowed", "cut")


class LinkCounters:
    """Messages of one direction, and their bytes (headers and payloads), by what became of them.

    sent        offered to the link
    repeated    copies that the network made
    received
    lost        dropped by chance
    overflowed  dropped because the queue was full
    cut         dropped because the connection ended
    dropped     all of these three
    in_flight
    """

    def __init__(self) -> None:
        self.messages = Counter[str]()
        self.bytes = Counter[str]()

    def count(self, kind: str, nbytes: int, messages: int = 1) -> None:
        """Add a message of this size; remove one for -1."""
        for each in (kind, "dropped") if kind in _DROPPED else (kind,):
            self.messages[each] += messages
            self.bytes[each] += nbytes * messages

    def add(self, other: LinkCounters) -> None:
        """Add other counters."""
        self.messages.update(other.messages)
        self.bytes.update(other.bytes)


class EmulatedLink:
    """One direction; `draw` returns random numbers in [0, 1)."""

    def __init__(self, spec: LinkSpec, draw: Callable[[], float]) -> None:
        self.spec = spec
        self.counters = LinkCounters()
        self._draw = draw
        self._free_ns = 0
        """Time when all messages taken have left."""
        self._rest_ns = 0.0
        """Rounding error of `_free_ns`; small messages take less than 1 ns."""
        self._arrivals_ns: deque[int] = deque()
        """Arrivals of the last messages, as many as the next one may overtake."""
        self._floor_ns = 0
        """Time when all older messages have arrived."""

    def offer(self, now_ns: int, nbytes: int) -> tuple[int, ...]:
        """Take a message; return the times of its arrivals: none if it is lost, two if repeated."""
        counters = self.counters
        counters.count("sent", nbytes)
        if self._is_full(now_ns, nbytes):
            counters.count("overflowed", nbytes)
            return ()
        copies_count = 1
        if self.spec.duplicate_ratio and self._draw() < self.spec.duplicate_ratio:
            copies_count = 2
            counters.count("repeated", nbytes)
        arrivals_ns = []
        for _ in range(copies_count):
            left_ns = self._leave(now_ns, nbytes)
            if self.spec.loss_ratio and self._draw() < self.spec.loss_ratio:
                counters.count("lost", nbytes)
                continue
            counters.count("in_flight", nbytes)
            arrivals_ns.append(self._arrival_ns(left_ns, nbytes))
        return tuple(arrivals_ns)

    def delivered(self, nbytes: int) -> None:
        """Count a message of this size as received."""
        self.counters.count("in_flight", nbytes, -1)
        self.counters.count("received", nbytes)

    def cut(self, nbytes: int) -> None:
        """Count a message of this size as cut: its connection has ended."""
        self.counters.count("in_flight", nbytes, -1)
        self.counters.count("cut", nbytes)

    def _is_full(self, now_ns: int, nbytes: int) -> bool:
        rate, limit = self.spec.rate_bytes_per_s, self.spec.queue_bytes
        if rate is None or limit is None or self._free_ns <= now_ns:
            return False
        return (self._free_ns - now_ns) * rate / 1e9 + nbytes > limit

    def _leave(self, now_ns: int, nbytes: int) -> int:
        """Time when the message has left."""
        if self._free_ns < now_ns:
            self._free_ns, self._rest_ns = now_ns, 0.0
        taken_ns = self.spec.serialise_ns(nbytes) + self._rest_ns
        self._free_ns += int(taken_ns)
        self._rest_ns = taken_ns - int(taken_ns)
        return self._free_ns

    def _arrival_ns(self, left_ns: int, nbytes: int) -> int:
        spec = self.spec
        arrival_ns = left_ns + spec.delay_ns
        if spec.jitter_ns:
            arrival_ns += int(self._draw() * spec.jitter_ns)
        if spec.reorder_window:
            arrival_ns += int(self._draw() * spec.spread_ns(nbytes))
        arrival_ns = max(arrival_ns, self._floor_ns)
        self._arrivals_ns.append(arrival_ns)
        if len(self._arrivals_ns) > spec.reorder_window:
            self._floor_ns = max(self._floor_ns, self._arrivals_ns.popleft())
        return arrival_ns
