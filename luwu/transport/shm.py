"""Transport over shared memory, on one host: ZeroMQ carries the place of a payload, not its bytes.

    reserve() --> arena (memfd) ----- mapped by every peer that knows it     --> delivery.buffers
    send() -----> notice over ZeroMQ: "message 7: arena 0, offset, bytes" -------> receive()
    handle.done <----------- notice: "7, 8, 9 released", many at once <----------- release()

A `ZeroMqTransport` over ipc inside this one carries the notices, and as frames every buffer that
lies in no arena known here; so any buffer may be sent, and what cannot be shared is copied. What
lies in a peer's arena is handed on by reference too: three processes read one piece of memory.

A connection is up when both sides have matched their ZeroMQ connection with the Unix socket that
passes descriptors (`descriptors`); both sides must call `receive` for that. Who does not greet in
this way is never up, and is reported as a stranger at `LISTENER`.

Where things are: `notices` (the bytes), `meetings` (until a peer is up), `shared_links` (one peer
that is, and what is given back), `arena` (the memory). No thread is used besides the
caller's and libzmq's own. Measured, bursts of 32 messages of 4 KiB, both sides' time in Python: 20
us a message, against 7 us for a header alone over ipc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.limits import CONTROL_HEADER_BYTES_MAX, CREDIT_BYTES_DEFAULT
from luwu.transport import notices
from luwu.transport.arena import Access, Arena, Region, Regions
from luwu.transport.interface import (
    Buffer,
    Delivery,
    PeerFailed,
    PeerUp,
    Received,
    SendHandle,
    Transport,
    check_credit,
    checked_views,
    gone,
)
from luwu.transport.meetings import Meetings
from luwu.transport.shared_links import Link, Passed, Returns
from luwu.transport.sockets import ZeroMqTiming
from luwu.transport.zeromq import ZeroMqTransport

_RETRY_NS: Final = 20_000_000
"""Pause until notices that a peer's full queue refused are tried again."""


class ShmTransport(Transport):
    """shm:// links of one process role."""

    def __init__(
        self, *, arena_bytes: int, credit_bytes: int = CREDIT_BYTES_DEFAULT,
        timing: ZeroMqTiming | None = None, peers: Access = Access.PRIVATE,
    ) -> None:  # fmt: skip
        """`arena_bytes` bounds what `reserve` gives; 0: share nothing, and still receive. `peers`:
        how their arenas are mapped.

        Raises ConfigError where the machine does not allow such an arena: see `check_arena`.
        """
        self._inner = ZeroMqTransport(
            credit_bytes=credit_bytes, timing=timing,
            header_bytes_max=CONTROL_HEADER_BYTES_MAX + notices.PREFIX_BYTES_MAX,
        )  # fmt: skip
        try:
            self._arena = Arena(arena_bytes)
        except ConfigError:
            self._inner.close()
            raise
        self._regions = Regions(peers)
        if self._arena.region is not None:
            self._regions.add(self._arena.region)
        self._meetings = Meetings(self._inner)
        self._links: dict[str, Link] = {}
        self._returns = Returns(self._inner)
        self._has_news = False  # handles became done
        self._is_woken = False
        self._is_closed = False

    def listen(self, endpoint: str, *, advertise: str | None = None) -> str:
        """Accept peers at shm://PATH or shm://auto; see `Transport.listen`."""
        return self._meetings.listen(endpoint)

    def dial(self, peer: str, endpoint: str) -> None:
        self._meetings.dial(peer, endpoint)

    def reserve(self, nbytes: int) -> memoryview:
        """Memory of the arena, which is sent without a copy; see `Transport.reserve`."""
        return self._arena.reserve(nbytes)

    def send(self, peer: str, header: bytes, buffers: Sequence[Buffer] = ()) -> SendHandle:
        """Queue one message; see `Transport.send`. What lies in an arena is not copied."""
        link = self._links.get(peer)
        if link is None:
            raise gone(peer)
        views = checked_views(header, buffers)
        payload_bytes = sum(map(len, views))
        if payload_bytes:
            limit = self._inner.hub.credit_bytes
            used_bytes = limit - self._inner.credit(peer) + link.lent_bytes
            check_credit(peer, len(header), payload_bytes, used_bytes, limit)
        if self._returns.given_back:
            self._returns.collect()
            if self._returns.are_many:  # else `receive` tells it
                self._returns.tell()
        handle = None
        if payload_bytes:
            handle = self._lend(link, header, views, payload_bytes)
        if handle is None:
            handle = self._inner.send(peer, notices.inline(header), views)
        return handle

    def gather(self) -> None:
        self._inner.gather()

    def flush(self) -> None:
        self._inner.flush()

    def credit(self, peer: str) -> int:
        link = self._links.get(peer)
        if link is None:
            raise gone(peer)
        return max(0, self._inner.credit(peer) - link.lent_bytes)

    def receive(self, timeout_ns: int | None) -> Received | None:
        until_ns = None if timeout_ns is None else SYSTEM_CLOCK.now_ns() + timeout_ns
        while True:
            heard = self._hear(timeout_ns)
            if heard is not None:
                told = self._understand(heard)
                if told is not None:
                    return told
                is_over = self._has_news
            else:
                is_over = self._is_woken
                self._is_woken = False
            timeout_ns = None if until_ns is None else max(0, until_ns - SYSTEM_CLOCK.now_ns())
            if is_over or (heard is None and timeout_ns == 0):
                self._has_news = False
                self._give_back()
                return None

    def waits_on(self) -> list[tuple[Any, int]]:
        """For a transport beside this one: what a blocked `receive` would poll."""
        return self._inner.waits_on()

    def wait_ns(self, timeout_ns: int | None) -> int | None:
        """The most time that it may block; less than asked while notices could not be sent."""
        if not self._returns.due:
            return timeout_ns
        return _RETRY_NS if timeout_ns is None else min(timeout_ns, _RETRY_NS)

    def wake(self) -> None:
        self._is_woken = True
        self._inner.wake()

    def close(self) -> None:
        """Close everything; see `ZeroMqTransport.close`. What was received stays readable."""
        if self._is_closed:
            return
        self._is_closed = True
        self._give_back()
        self._returns.close()
        self._meetings.close()  # its sockets' files go while the inner transport still listens
        self._inner.close()
        for link in tuple(self._links.values()):
            self._end(link)
        if self._arena.region is not None:
            self._regions.drop(self._arena.region)
        self._arena.close()

    def _give_back(self) -> None:
        self._returns.collect()
        self._returns.tell()

    def _lend(
        self, link: Link, header: bytes, views: list[memoryview], payload_bytes: int
    ) -> SendHandle | None:
        """Send a message of which something can be shared; None if nothing can."""
        mask = 0
        spans: list[notices.Span] = []
        frames: list[memoryview] = []
        tickets = []
        for index, view in enumerate(views):
            found = self._regions.at(view) if view.nbytes else None
            span = link.span(*found, view.nbytes) if found is not None else None
            if found is None or span is None:
                frames.append(view)
                continue
            mask |= 1 << index
            spans.append(span)
            ticket = self._returns.tickets.covering(*found, view.nbytes)
            if ticket is not None:
                tickets.append(ticket)
        if not spans:
            return None
        notice = notices.shared(link.sent_sequence + 1, mask, spans, header)
        inline = self._inner.send(link.peer, notice, frames)
        # The inner transport counts the frames.
        lent_bytes = len(header) + payload_bytes - sum([frame.nbytes for frame in frames])
        for ticket in tickets:
            ticket.holders_count += 1
        passed = Passed(views, lent_bytes, tickets, inline)
        link.lend(passed)
        return passed

    def _hear(self, timeout_ns: int | None) -> Received | None:
        """The next that the inner transport has; None also when something is to be given back."""
        returns = self._returns
        if returns.given_back:
            returns.collect()
        if returns.due:
            if not returns.are_many:
                heard = self._inner.receive(0)
                if heard is not None or self._is_woken:
                    return heard
            returns.tell()
            timeout_ns = self.wait_ns(timeout_ns)
        # Who gives back notes it, then looks at this; we set this, then look: one sees the other.
        returns.is_blocked = True
        heard = self._inner.receive(0 if returns.given_back else timeout_ns)
        returns.is_blocked = False
        return heard

    def _understand(self, heard: Received) -> Received | None:
        """The meaning of the inner transport's event for our caller; None: nothing."""
        if isinstance(heard, Delivery):
            link = self._links.get(heard.peer)
            if link is None:
                met = self._meetings.hear(heard)
                if not isinstance(met, Link):
                    return met
                self._links[met.peer] = met
                return PeerUp(met.peer)
            try:
                return self._read(link, heard)
            except LuwuError as exc:
                return PeerFailed(link.peer, exc, final=False)
        if isinstance(heard, PeerUp):
            return self._meetings.begin(heard.peer)
        if isinstance(heard, PeerFailed):
            return self._meetings.translated(heard)
        if heard.peer not in self._links:
            return self._meetings.end(heard.peer)
        self._end(self._links[heard.peer])
        return heard

    def _read(self, link: Link, heard: Delivery) -> Delivery | None:
        """A notice of a peer that is up. Raises LuwuError for one that makes no sense."""
        notice = heard.header
        kind = notice[0]
        if kind == notices.SHARED:
            return self._returns.borrow(link, heard, self._regions)
        if kind == notices.INLINE:
            heard.header = notices.checked_header(notice[1:])
            return heard
        if kind == notices.RELEASED:
            self._has_news = True
            for sequence in notices.read_numbers(notice, len(heard.buffers)):
                self._returns.finish(link.take_back(sequence))
            return None
        if kind == notices.FORGOTTEN:
            for index in notices.read_numbers(notice, len(heard.buffers)):
                self._drop(link.lose_arena(index, self._regions))
            return None
        raise notices.unknown(kind)

    def _drop(self, region: Region) -> None:
        """A peer lends from this arena no more."""
        if self._regions.drop(region):
            for link in self._links.values():
                link.forget(region)
                self._returns.owe_forgotten(link)

    def _end(self, link: Link) -> None:
        """The connection is over."""
        del self._links[link.peer]
        self._returns.end(link)
        arenas, lent = link.close()
        for region in arenas:
            self._drop(region)
        for passed in lent:
            self._returns.finish(passed)
