"""Buffers lent by peers: made a delivery, given back, and returned in few notices.

    SHARED notice -> `borrow` -> Delivery
    Delivery.release (any thread) -> `give_back` -> `collect` -> no view is left -> RELEASED is due
                                                                 `tell`, when `receive` would block,
                                                                 or 64 messages or 4 MiB are due

A notice costs as much as a small message, so while messages keep coming one of them tells of many.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from luwu.base.errors import LuwuError, RemoteProtocolError
from luwu.transport import notices
from luwu.transport.interface import CreditExceeded, Delivery, PeerGone
from luwu.transport.mapping import Regions
from luwu.transport.shared_links import Link, OpenTickets, Passed, Ticket
from luwu.transport.zeromq import ZeroMqTransport

_DUE_COUNT_MAX: Final = 64
_DUE_BYTES_MAX: Final = 4 * 1024 * 1024


class Returns:
    """The open deliveries of one transport, and the notices that are due for released ones."""

    def __init__(self, inner: ZeroMqTransport) -> None:
        self.tickets = OpenTickets()
        self.given_back: deque[Ticket] = deque()
        """Released and not yet looked at."""
        self.is_blocked = False
        """The transport's thread waits, or is about to, and must be woken."""
        self._inner = inner
        self._due: dict[Link, None] = {}
        self._due_count = 0
        self._due_bytes = 0
        self._is_closed = False

    @property
    def are_due(self) -> bool:
        """Call `flush` soon: something is due to a peer."""
        return bool(self._due)

    @property
    def are_many(self) -> bool:
        """So much is due that it must be reported although messages may wait."""
        return self._due_count >= _DUE_COUNT_MAX or self._due_bytes >= _DUE_BYTES_MAX

    def borrow(self, link: Link, heard: Delivery, regions: Regions) -> Delivery:
        """The delivery that a SHARED notice and its frames are.

        Raises RemoteProtocolError, and ConnectionFailed if an arena cannot be mapped here.
        """
        notice = notices.read_shared(heard.header, len(heard.buffers))
        if notice.sequence != link.heard_sequence + 1:
            raise RemoteProtocolError(
                f"peer {link.peer!r} sent message {notice.sequence} after {link.heard_sequence}. "
                f"It was dropped; is the peer of the same version?"
            )
        link.heard_sequence = notice.sequence
        try:
            places = [link.place(span, regions) for span in notice.spans]
        except LuwuError:
            self.owe(link, notice.sequence, 0)  # the message is lost, its memory must not be
            raise
        buffers = heard.buffers
        remaining = iter(places)
        for index in range(len(buffers) + len(places)):
            if notice.mask >> index & 1:
                region, offset, nbytes = next(remaining)
                buffers.insert(index, region.shown[offset : offset + nbytes])
        ticket = Ticket(link, notice.sequence, places, self.give_back)
        self.tickets.add(ticket)
        return Delivery(link.peer, notice.header, buffers, ticket.release, is_shared=True)

    def give_back(self, ticket: Ticket) -> None:
        """A delivery was released; any thread."""
        if not self._is_closed:
            self.given_back.append(ticket)
            if self.is_blocked:
                self._inner.wake()

    def collect(self) -> None:
        """Look at what was given back."""
        given_back = self.given_back
        while given_back:
            self._let_go(given_back.popleft())

    def finish(self, passed: Passed) -> None:
        """Take back a buffer that was lent."""
        passed.is_returned = True
        passed.views = None
        for ticket in passed.tickets:
            self._let_go(ticket)
        passed.tickets.clear()

    def owe(self, link: Link, sequence: int, nbytes: int) -> None:
        """A message of the peer is needed no more."""
        link.released.append(sequence)
        self._due[link] = None
        self._due_count += 1
        self._due_bytes += nbytes

    def owe_forgotten(self, link: Link) -> None:
        """The peer may forget arenas."""
        if link.forgotten:
            self._due[link] = None

    def tell(self) -> None:
        """Send what is due; what a full queue refuses stays due."""
        if not self._due:
            return
        self._due_count = self._due_bytes = 0
        for link in tuple(self._due):
            try:
                self._tell(link, notices.RELEASED, link.released)
                self._tell(link, notices.FORGOTTEN, link.forgotten)
            except CreditExceeded:
                continue
            except PeerGone:  # its PeerDown follows
                pass
            del self._due[link]

    def end(self, link: Link) -> None:
        """The connection is over: there is no peer to report to."""
        self.tickets.remove_of(link)
        self._due.pop(link, None)

    def close(self) -> None:
        """Releases mean nothing any more."""
        self._is_closed = True
        self.given_back.clear()

    def _let_go(self, ticket: Ticket) -> None:
        ticket.holders_count -= 1
        if ticket.holders_count == 0 and ticket.link.is_up:
            self.tickets.remove(ticket)
            self.owe(ticket.link, ticket.sequence, ticket.nbytes)

    def _tell(self, link: Link, kind: int, values: list[int]) -> None:
        while values:
            some = values[: notices.NUMBERS_COUNT_MAX]
            self._inner.send(link.peer, notices.numbers(kind, some))
            del values[: len(some)]
