"""A transport whose links are slow, late or lossy: it wraps any other and holds messages back.

Both directions of a link are emulated at its upper end: for peers that dialled us. A message to
them is held until it has arrived at their end of the link, and only then handed to the inner
transport; one from them is held until it has arrived at ours. Links to peers that we dialled are
emulated at the other end.

    send      -> EmulatedLink (down) -> held -> inner.send
    receive  <- held <- EmulatedLink (up) <- inner.receive

T1 to T6 hold (`luwu/transport/interface.py`), except that links may lose, repeat or reorder
messages. In detail:

    T2: PeerDown overtakes no held message of its peer; held messages to the peer are cut.
    T3: Held bytes count towards the peer's credit.
    T4: A handle is done when the inner one is, of both copies if there are two, or when the
        message was dropped. A delivery's buffers return when all copies were released.
    T6: `close` hands on messages that are due within `FLUSH_NS_MAX`; the rest is cut.

No thread is added: held messages move in calls of `receive`, `send` and `close`. A shell that is
busy elsewhere for a millisecond delays its links by as much.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.links import LinkPair
from luwu.base.seeds import derive
from luwu.transport.interface import (
    Buffer,
    CreditExceeded,
    Delivery,
    PeerDown,
    PeerGone,
    PeerUp,
    Received,
    SendHandle,
    Transport,
    check_credit,
    checked_views,
)
from switch_emu.links.link import EmulatedLink, LinkCounters

FLUSH_NS_MAX: Final = 2_000_000_000

_NEAR_NS: Final = 2_000_000
"""Transports wait in whole milliseconds; shorter waits are made of naps."""
_NAP_NS: Final = 50_000


@dataclass(eq=False, slots=True)
class _Ends:
    """The link of one peer."""

    peer: str
    up: EmulatedLink
    down: EmulatedLink
    held_bytes: int = 0
    """Bytes to be sent."""
    last_ns: int = 0
    """Time when the last message from the peer is due."""


class _HeldSend:
    """Handle of a message that is held, or of both its copies."""

    __slots__ = ("_copies_count", "_handles")

    def __init__(self, copies_count: int) -> None:
        self._copies_count = copies_count
        self._handles: list[SendHandle] = []

    @property
    def done(self) -> bool:
        """True if no copy is held, and the inner transport has sent all."""
        return self._copies_count == 0 and all(handle.done for handle in self._handles)

    def handed_on(self, handle: SendHandle) -> None:
        """Note that the inner transport has one more copy."""
        self._copies_count -= 1
        self._handles.append(handle)

    def dropped(self) -> None:
        """Note that a copy will never be sent."""
        self._copies_count -= 1


class _Copies:
    """Releases a delivery when all its copies are released. Thread-safe."""

    def __init__(self, delivery: Delivery, copies_count: int) -> None:
        self._delivery = delivery
        self._left = copies_count
        self._lock = threading.Lock()

    def release(self) -> None:
        """Release one copy."""
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._delivery.release()


@dataclass(order=True, slots=True)
class _Due:
    """An event at a time; ties are in order of creation."""

    at_ns: int
    order: int
    ends: _Ends = field(compare=False)
    nbytes: int = field(compare=False, default=0)
    received: Received | None = field(compare=False, default=None)
    """The event that `receive` returns then."""
    send: tuple[_HeldSend, bytes, list[memoryview]] | None = field(compare=False, default=None)
    """The call to the inner transport then."""


class LinkedTransport(Transport):
    """See the module."""

    def __init__(self, inner: Transport, link: LinkPair, *, seed: int) -> None:
        self._inner = inner
        self._link = link
        self._seed = seed
        self._dialled: set[str] = set()
        self._ends: dict[str, _Ends] = {}
        self._all: list[_Ends] = []
        """All links, those of peers that left included, for the counters."""
        self._arriving: list[_Due] = []
        self._leaving: list[_Due] = []
        self._passed: deque[Received] = deque()
        """Events of no link, for the next `receive`."""
        self._order = 0
        self._is_woken = False
        self._is_closed = False

    # ---------------------------------------------------------------------- Transport

    def dial(self, peer: str, endpoint: str) -> None:
        """See `Transport.dial`; the other end emulates this link."""
        self._inner.dial(peer, endpoint)
        self._dialled.add(peer)

    def listen(self, endpoint: str, *, advertise: str | None = None) -> str:
        return self._inner.listen(endpoint, advertise=advertise)

    def reserve(self, nbytes: int) -> memoryview:
        return self._inner.reserve(nbytes)

    def gather(self) -> None:
        self._inner.gather()

    def flush(self) -> None:
        self._inner.flush()

    def send(self, peer: str, header: bytes, buffers: Sequence[Buffer] = ()) -> SendHandle:
        """See `Transport.send`; the message is held until it has arrived."""
        if peer in self._dialled:
            return self._inner.send(peer, header, buffers)
        credit_bytes = self._inner.credit(peer)  # raises PeerGone
        views = checked_views(header, buffers)
        ends = self._ends_of(peer)
        nbytes = _size(header, views)
        check_credit(peer, len(header), nbytes - len(header), ends.held_bytes, credit_bytes)
        arrivals_ns = ends.down.offer(SYSTEM_CLOCK.now_ns(), nbytes)
        held = _HeldSend(len(arrivals_ns))
        for at_ns in arrivals_ns:
            ends.held_bytes += nbytes
            self._plan(self._leaving, at_ns, ends, nbytes, send=(held, bytes(header), views))
        self.hand_on()
        return held

    def credit(self, peer: str) -> int:
        credit_bytes = self._inner.credit(peer)
        ends = self._ends.get(peer)
        return credit_bytes if ends is None else max(0, credit_bytes - ends.held_bytes)

    def receive(self, timeout_ns: int | None) -> Received | None:
        """See `Transport.receive`; also hands on what is due to be sent."""
        until_ns = None if timeout_ns is None else SYSTEM_CLOCK.now_ns() + timeout_ns
        while True:
            has_news = self.hand_on()
            if self._passed:
                return self._passed.popleft()
            if _is_due(self._arriving):
                # Messages that wait inside enter their links now, however long the caller takes.
                while (event := self._inner.receive(0)) is not None:
                    self._take(event)
                return self._arrived()
            now_ns = SYSTEM_CLOCK.now_ns()
            has_ended = until_ns is not None and now_ns >= until_ns
            if has_news or self._is_woken or has_ended:
                event = self._inner.receive(0)
                if event is None:
                    self._is_woken = False
                    return None
            else:
                event = self._wait(now_ns, until_ns)
            if event is not None:
                self._take(event)

    def wake(self) -> None:
        self._is_woken = True
        self._inner.wake()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        until_ns = SYSTEM_CLOCK.now_ns() + FLUSH_NS_MAX
        self.hand_on()
        while self._leaving and self._leaving[0].at_ns < until_ns:
            self._is_woken = False
            event = self._nap(self._leaving[0].at_ns)
            if isinstance(event, Delivery):
                event.release()
            elif isinstance(event, PeerDown) and event.peer in self._ends:
                self._cut(self._ends[event.peer])
            self.hand_on()
        for due in self._leaving:
            self._drop(due)
        for due in self._arriving:
            if isinstance(due.received, Delivery):
                due.ends.up.cut(due.nbytes)
                due.received.release()
        self._leaving.clear()
        self._arriving.clear()
        self._inner.close()

    # ---------------------------------------------------------------------- counters

    @property
    def holds_sends(self) -> bool:
        """True if any message to a peer is held."""
        return bool(self._leaving)

    def links(self) -> list[tuple[str, LinkCounters, LinkCounters]]:
        """(peer, up, down) of every connection so far, oldest first."""
        return [(ends.peer, ends.up.counters, ends.down.counters) for ends in self._all]

    # ---------------------------------------------------------------------- held messages

    def _wait(self, now_ns: int, until_ns: int | None) -> Received | None:
        """Wait for an event of the inner transport until something is due or the time is over."""
        next_ns = self._next_due_ns()
        if next_ns is not None and next_ns - now_ns <= _NEAR_NS:
            return self._nap(next_ns if until_ns is None else min(next_ns, until_ns))
        stop_ns = until_ns
        if next_ns is not None:
            near_ns = next_ns - _NEAR_NS
            stop_ns = near_ns if until_ns is None else min(near_ns, until_ns)
        event = self._inner.receive(None if stop_ns is None else stop_ns - now_ns)
        if event is None and (stop_ns is None or SYSTEM_CLOCK.now_ns() < stop_ns):
            self._is_woken = True  # or buffers returned: the caller must check
        return event

    def _nap(self, stop_ns: int) -> Received | None:
        """The same for a short time."""
        while True:
            event = self._inner.receive(0)
            left_ns = stop_ns - SYSTEM_CLOCK.now_ns()
            if event is not None or left_ns <= 0 or self._is_woken:
                return event
            sleep(min(left_ns, _NAP_NS) / 1e9)

    def _take(self, event: Received) -> None:
        """Put an event on its link; without one, into the queue."""
        peer = event.peer
        if isinstance(event, PeerUp) and peer not in self._dialled:
            self._ends_of(peer)
        ends = None if isinstance(event, PeerUp) else self._ends.get(peer)
        if ends is None:
            self._passed.append(event)
        elif isinstance(event, Delivery):
            self._put_on_link(ends, event)
        else:
            if isinstance(event, PeerDown):
                self._cut(ends)
            self._plan(self._arriving, ends.last_ns, ends, received=event)

    def _put_on_link(self, ends: _Ends, delivery: Delivery) -> None:
        nbytes = _size(delivery.header, delivery.buffers)
        arrivals_ns = ends.up.offer(SYSTEM_CLOCK.now_ns(), nbytes)
        if not arrivals_ns:
            delivery.release()
            return
        copies = _Copies(delivery, len(arrivals_ns))
        for at_ns in arrivals_ns:
            copy = Delivery(
                delivery.peer, delivery.header, list(delivery.buffers), copies.release,
                is_shared=delivery.is_shared,
            )  # fmt: skip
            self._plan(self._arriving, at_ns, ends, nbytes, received=copy)
            ends.last_ns = max(ends.last_ns, at_ns)

    def _arrived(self) -> Received:
        """The first event that is due."""
        due = heapq.heappop(self._arriving)
        assert due.received is not None
        if isinstance(due.received, Delivery):
            due.ends.up.delivered(due.nbytes)
            if not due.received.buffers:
                due.received.release()  # nothing to give back
        elif isinstance(due.received, PeerDown):
            del self._ends[due.ends.peer]
        return due.received

    def hand_on(self) -> bool:
        """Hand on messages that have arrived at the other end; True if there were any."""
        handed_on = False
        while _is_due(self._leaving):
            due = heapq.heappop(self._leaving)
            assert due.send is not None
            held, header, views = due.send
            try:
                handle = self._inner.send(due.ends.peer, header, views)
            except (PeerGone, CreditExceeded):  # or no credit for a copy
                self._drop(due)
            else:
                due.ends.held_bytes -= due.nbytes
                due.ends.down.delivered(due.nbytes)
                held.handed_on(handle)
            handed_on = True
        if handed_on:
            self._inner.flush()  # a link has its own time
        return handed_on

    def _cut(self, ends: _Ends) -> None:
        """Drop held messages to a connection that has ended."""
        for due in self._leaving:
            if due.ends is ends:
                self._drop(due)
        self._leaving = [due for due in self._leaving if due.ends is not ends]
        heapq.heapify(self._leaving)

    def _drop(self, due: _Due) -> None:
        assert due.send is not None
        due.ends.held_bytes -= due.nbytes
        due.ends.down.cut(due.nbytes)
        due.send[0].dropped()

    def _plan(
        self, queue: list[_Due], at_ns: int, ends: _Ends, nbytes: int = 0, **what: Any
    ) -> None:
        self._order += 1
        heapq.heappush(queue, _Due(at_ns, self._order, ends, nbytes, **what))

    def _next_due_ns(self) -> int | None:
        return min(
            (queue[0].at_ns for queue in (self._arriving, self._leaving) if queue), default=None
        )

    def _ends_of(self, peer: str) -> _Ends:
        ends = self._ends.get(peer)
        if ends is None:
            number = len(self._all)
            ends = _Ends(
                peer,
                EmulatedLink(self._link.up, _draws(self._seed, number, "up")),
                EmulatedLink(self._link.down, _draws(self._seed, number, "down")),
            )
            self._ends[peer] = ends
            self._all.append(ends)
        return ends


def linked(inner: Transport, link: LinkPair | None, *, seed: int) -> Transport:
    """The transport with emulated links; the transport itself if they are ideal."""
    if link is None or link.is_ideal:
        return inner
    return LinkedTransport(inner, link, seed=seed)


def _draws(seed: int, number: int, way: str) -> Callable[[], float]:
    """Random numbers for one direction of the n-th link."""
    return random.Random(derive(seed, "link", number, way)).random


def _is_due(queue: list[_Due]) -> bool:
    return bool(queue) and queue[0].at_ns <= SYSTEM_CLOCK.now_ns()


def _size(header: bytes, buffers: Sequence[memoryview]) -> int:
    return len(header) + sum(view.nbytes for view in buffers)


KINDS: Final = (
    "sent", "repeated", "received", "dropped", "lost", "overflowed", "cut", "in_flight",
)  # fmt: skip


def link_rows(
    transport: Transport, role: str, name_of: Callable[[str], str]
) -> list[dict[str, Any]]:
    """A row for each link and direction; none where nothing is emulated.

        {"link": "worker (ranks 0)", "direction": "up", "label": "emulated",
         "messages": {"sent": 12, "repeated": 0, "received": 11, "dropped": 1, "lost": 1, ...},
         "bytes": {the same}}

    For messages and for bytes, sent + repeated = received + dropped + in_flight, and dropped is
    lost + overflowed + cut. Bytes copied on the host are counted apart.

    `role`: the role at their lower ends; `name_of`: the name of a peer. Connections of one name are
    added up, such as those of a restarted worker.
    """
    if not isinstance(transport, LinkedTransport):
        return []
    totals: dict[tuple[str, str], LinkCounters] = {}
    for peer, up, down in transport.links():
        for way, counters in (("up", up), ("down", down)):
            totals.setdefault((f"{role} ({name_of(peer)})", way), LinkCounters()).add(counters)
    return [_row(name, way, counters) for (name, way), counters in sorted(totals.items())]


def _row(name: str, way: str, counters: LinkCounters) -> dict[str, Any]:
    row: dict[str, Any] = {"link": name, "direction": way, "label": "emulated"}
    for unit in ("messages", "bytes"):
        row[unit] = {kind: getattr(counters, unit)[kind] for kind in KINDS}
    return row
