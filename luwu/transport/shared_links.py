"""One connection over shared memory: what each side lent the other, and got back.

A SHARED message lends memory. Its life, seen from both sides:

    sender      `Passed` in `Link.lent`         until RELEASED names it, or the connection ends
    receiver    `Ticket` of the delivery        until `Delivery.release`, and until what was handed
                                                on of it came back: then RELEASED is due

A buffer that is handed on (A -> B -> C) stays A's memory: B's message to C takes part in the ticket
of A's delivery at B, so A's handle is done only when B and C have both let go, in either order.
Only B knows that C reads: if B dies, A's handle is done, and C must not use what B handed on after
the PeerDown that C gets too.

What is given back is returned to its sender in few notices (`Returns`): a notice costs as much as a
small message, so while messages keep coming one of them tells of many.

    SHARED notice -> `borrow` -> Delivery
    Delivery.release (any thread) -> `give_back` -> `collect` -> no view is left -> RELEASED is due
                                                                 `tell`, when `receive` would block,
                                                                 or 64 messages or 4 MiB are due

Everything here belongs to the transport's thread, except `Returns.give_back`.
"""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from luwu.base.errors import LuwuError, RemoteProtocolError
from luwu.base.limits import WORLD_SIZE_MAX
from luwu.transport import descriptors, notices
from luwu.transport.arena import Region, Regions
from luwu.transport.interface import CreditExceeded, Delivery, PeerGone, SendHandle
from luwu.transport.notices import Span
from luwu.transport.zeromq import ZeroMqTransport

_ARENAS_COUNT_MAX: Final = WORLD_SIZE_MAX + 64
"""Arenas that one peer may pass: its own, and those of all whose memory it hands on."""
_DUE_COUNT_MAX: Final = 64
_DUE_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(eq=False, slots=True)
class Passed:
    """Handle of a message with spans: done when the receiver gave them back."""

    views: list[memoryview] | None
    """Keeps the memory from being reserved again."""
    nbytes: int
    tickets: list[Ticket]
    inline: SendHandle
    is_returned: bool = False

    @property
    def done(self) -> bool:
        """Neither the receiver nor libzmq needs the buffers."""
        return self.is_returned and self.inline.done


@dataclass(eq=False, slots=True)
class Ticket:
    """A delivery with spans that is not given back."""

    link: Link
    sequence: int
    places: list[tuple[Region, int, int]]
    holders_count: int = 1
    """The delivery itself, and each message that hands a part of it on."""

    def covers(self, region: Region, offset: int, nbytes: int) -> bool:
        """True if all of a span lies in one of our buffers."""
        for place, start, length in self.places:
            if place is region and start <= offset and offset + nbytes <= start + length:
                return True
        return False


class OpenTickets:
    """The tickets of a transport by where their buffers start."""

    def __init__(self) -> None:
        self._by_region: dict[Region, dict[int, list[Ticket]]] = {}

    def add(self, ticket: Ticket) -> None:
        """From now on found by `covering`."""
        for region, offset, _ in ticket.places:
            self._by_region.setdefault(region, {}).setdefault(offset, []).append(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Undo `add`."""
        for region, offset, _ in ticket.places:
            by_offset = self._by_region[region]
            by_offset[offset].remove(ticket)
            if not by_offset[offset]:
                del by_offset[offset]
                if not by_offset:
                    del self._by_region[region]

    def remove_of(self, link: Link) -> None:
        """Forget all of a connection that is over: from now on only views hold its memory."""
        tickets = {
            ticket: None
            for by_offset in self._by_region.values()
            for at_offset in by_offset.values()
            for ticket in at_offset
            if ticket.link is link
        }
        for ticket in tickets:
            self.remove(ticket)

    def covering(self, region: Region, offset: int, nbytes: int) -> Ticket | None:
        """A ticket in which the span lies; None for memory that no peer lent us."""
        by_offset = self._by_region.get(region)
        if by_offset is None:  # nearly always so for memory of our own
            return None
        for ticket in by_offset.get(offset, ()):
            if ticket.covers(region, offset, nbytes):
                return ticket
        for tickets in by_offset.values():  # a part of a buffer is handed on
            for ticket in tickets:
                if ticket.covers(region, offset, nbytes):
                    return ticket
        return None


@dataclass(eq=False, slots=True)
class Link:
    """One peer that is up."""

    peer: str
    _channel: socket.socket
    is_up: bool = True
    sent_sequence: int = 0
    heard_sequence: int = 0
    lent: dict[int, Passed] = field(default_factory=dict)
    lent_bytes: int = 0
    released: list[int] = field(default_factory=list)
    """Numbers that a RELEASED notice must name."""
    forgotten: list[int] = field(default_factory=list)
    """Numbers that a FORGOTTEN notice must name."""
    _passed: dict[Region, int] = field(default_factory=dict)
    _passed_count: int = 0
    _arenas: dict[int, Region] = field(default_factory=dict)
    _arenas_count: int = 0

    def span(self, region: Region, offset: int, nbytes: int) -> Span | None:
        """The span that names memory of a region to the peer; None if that is not possible now."""
        index = self._passed.get(region)
        if index is None:
            if not descriptors.pass_arena(self._channel, region.fd, region.nbytes):
                return None
            index = self._passed[region] = self._passed_count
            self._passed_count += 1
        return Span(index, offset, nbytes)

    def forget(self, region: Region) -> None:
        """The region is no more; the peer need not keep it either, if it has it."""
        index = self._passed.pop(region, None)
        if index is not None:
            self.forgotten.append(index)

    def lend(self, passed: Passed) -> None:
        """A message with spans was sent."""
        self.sent_sequence += 1
        self.lent[self.sent_sequence] = passed
        self.lent_bytes += passed.nbytes

    def take_back(self, sequence: int) -> Passed:
        """The peer gave a message's spans back. Raises RemoteProtocolError."""
        passed = self.lent.pop(sequence, None)
        if passed is None:
            raise RemoteProtocolError(
                f"peer {self.peer!r} gave message {sequence} back, which it does not have. That "
                f"was ignored; is the peer of the same version?"
            )
        self.lent_bytes -= passed.nbytes
        return passed

    def place(self, span: Span, regions: Regions) -> tuple[Region, int, int]:
        """The region, offset and length of a span. Raises RemoteProtocolError, ConnectionFailed."""
        region = self._arenas.get(span.arena_index)
        if region is None:
            region = self._arena(span.arena_index, regions)
        if span.nbytes == 0 or span.offset + span.nbytes > region.nbytes:
            raise RemoteProtocolError(
                f"peer {self.peer!r} named {span.nbytes} bytes at {span.offset} of an arena of "
                f"{region.nbytes}. The message was dropped; is the peer of the same version?"
            )
        return region, span.offset, span.nbytes

    def lose_arena(self, index: int, regions: Regions) -> Region:
        """The peer will not name this arena again. Raises as `place` does."""
        region = self._arena(index, regions)
        del self._arenas[index]
        return region

    def close(self) -> tuple[list[Region], list[Passed]]:
        """The connection is over: arenas to drop, and what was lent, now returned."""
        self.is_up = False
        self._channel.close()
        arenas, lent = list(self._arenas.values()), list(self.lent.values())
        for each in (self._arenas, self._passed, self.lent, self.released, self.forgotten):
            each.clear()
        self.lent_bytes = 0
        return arenas, lent

    def _arena(self, index: int, regions: Regions) -> Region:
        """An arena that the peer passed, now or earlier."""
        while index >= self._arenas_count and len(self._arenas) < _ARENAS_COUNT_MAX:
            number = self._arenas_count
            self._arenas_count += 1  # it was passed, whether it can be used or not
            arena = descriptors.passed_arena(self._channel)
            if arena is None:
                self._arenas_count -= 1
                break
            self._arenas[number] = regions.adopt(*arena)
        region = self._arenas.get(index)
        if region is None:
            raise RemoteProtocolError(
                f"peer {self.peer!r} named arena {index}, having passed {self._arenas_count}. "
                f"The message was dropped; is the peer of the same version?"
            )
        return region


class Returns:
    """The open deliveries of one transport, and the notices that are due for released ones."""

    def __init__(self, inner: ZeroMqTransport) -> None:
        self.tickets = OpenTickets()
        self.given_back: deque[Ticket] = deque()
        """Released and not yet looked at."""
        self.is_blocked = False
        """The transport's thread waits, or is about to, and must be woken."""
        self._inner = inner
        self.due: dict[Link, None] = {}
        """Links to whose peers something is due."""
        self._due_count = 0
        self._due_bytes = 0
        self._is_closed = False

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
        ticket = Ticket(link, notice.sequence, places)
        self.tickets.add(ticket)
        release = partial(self.give_back, ticket)
        return Delivery(link.peer, notice.header, buffers, release, is_shared=True)

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
        self.due[link] = None
        self._due_count += 1
        self._due_bytes += nbytes

    def owe_forgotten(self, link: Link) -> None:
        """The peer may forget arenas."""
        if link.forgotten:
            self.due[link] = None

    def tell(self) -> None:
        """Send what is due; what a full queue refuses stays due."""
        if not self.due:
            return
        self._due_count = self._due_bytes = 0
        for link in tuple(self.due):
            try:
                self._tell(link, notices.RELEASED, link.released)
                self._tell(link, notices.FORGOTTEN, link.forgotten)
            except CreditExceeded:
                continue
            except PeerGone:  # its PeerDown follows
                pass
            del self.due[link]

    def end(self, link: Link) -> None:
        """The connection is over: there is no peer to report to."""
        self.tickets.remove_of(link)
        self.due.pop(link, None)

    def close(self) -> None:
        """Releases mean nothing any more."""
        self._is_closed = True
        self.given_back.clear()

    def _let_go(self, ticket: Ticket) -> None:
        ticket.holders_count -= 1
        if ticket.holders_count == 0 and ticket.link.is_up:
            self.tickets.remove(ticket)
            nbytes = sum([length for _, _, length in ticket.places])
            self.owe(ticket.link, ticket.sequence, nbytes)

    def _tell(self, link: Link, kind: int, values: list[int]) -> None:
        while values:
            some = values[: notices.NUMBERS_COUNT_MAX]
            self._inner.send(link.peer, notices.numbers(kind, some))
            del values[: len(some)]
