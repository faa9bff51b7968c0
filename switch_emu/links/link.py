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

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from luwu.base.links import LinkSpec


@dataclass(slots=True)
class Traffic:
    """Messages, and their bytes: headers and payloads."""

    messages: int = 0
    bytes: int = 0

    def count(self, nbytes: int, messages: int = 1) -> None:
        """Add a message of this size; remove one for -1."""
        self.messages += messages
        self.bytes += nbytes * messages

    def add(self, other: Traffic) -> None:
        """Add other traffic."""
        self.messages += other.messages
        self.bytes += other.bytes


@dataclass(slots=True)
class LinkCounters:
    """Counts of the messages of one direction; see L1."""

    sent: Traffic = field(default_factory=Traffic)
    """Offered to the link."""
    repeated: Traffic = field(default_factory=Traffic)
    """Copies that the network made."""
    received: Traffic = field(default_factory=Traffic)
    lost: Traffic = field(default_factory=Traffic)
    """Dropped by chance."""
    overflowed: Traffic = field(default_factory=Traffic)
    """Dropped because the queue was full."""
    cut: Traffic = field(default_factory=Traffic)
    """Dropped because the connection ended."""
    in_flight: Traffic = field(default_factory=Traffic)

    @property
    def dropped(self) -> Traffic:
        """All dropped traffic."""
        total = Traffic()
        for each in (self.lost, self.overflowed, self.cut):
            total.add(each)
        return total

    def add(self, other: LinkCounters) -> None:
        """Add other counters."""
        for name in LinkCounters.__slots__:
            getattr(self, name).add(getattr(other, name))


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
        counters.sent.count(nbytes)
        if self._is_full(now_ns, nbytes):
            counters.overflowed.count(nbytes)
            return ()
        copies_count = 1
        if self.spec.duplicate_ratio and self._draw() < self.spec.duplicate_ratio:
            copies_count = 2
            counters.repeated.count(nbytes)
        arrivals_ns = []
        for _ in range(copies_count):
            left_ns = self._leave(now_ns, nbytes)
            if self.spec.loss_ratio and self._draw() < self.spec.loss_ratio:
                counters.lost.count(nbytes)
                continue
            counters.in_flight.count(nbytes)
            arrivals_ns.append(self._arrival_ns(left_ns, nbytes))
        return tuple(arrivals_ns)

    def delivered(self, nbytes: int) -> None:
        """Count a message of this size as received."""
        self.counters.in_flight.count(nbytes, -1)
        self.counters.received.count(nbytes)

    def cut(self, nbytes: int) -> None:
        """Count a message of this size as cut: its connection has ended."""
        self.counters.in_flight.count(nbytes, -1)
        self.counters.cut.count(nbytes)

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
