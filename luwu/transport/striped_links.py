"""The life of links of several stripes: from news of their connections to news of one peer.

    seeking -> meeting   the first stripe is there; the others must follow in time
    meeting -> up        PeerUp: all are there
    meeting -> seeking   PeerFailed: they are not; a link that we dial is dialled anew, whole
    up      -> ending    a stripe is lost: nothing can be sent; what is in order is still handed out
    ending  -> seeking   PeerDown: the next message would come over the lost stripe, or the others
                         did not end in time; a link that we dial is dialled anew, whole

What belongs to a link that was refused or is over is ignored until its connection ends.

What a peer may make us hold: messages ahead of their turn, as much as the credit and one buffer. A
sender's credit counts everything since its oldest message that has not left, so one that keeps to
the same credit stays below. A link that is not whole is held for three times that of a handshake.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConnectionFailed, RemoteProtocolError
from luwu.base.limits import CONTROL_HEADER_BYTES_MAX, PAYLOAD_BYTES_MAX
from luwu.transport.connections import Greeted
from luwu.transport.interface import (
    LISTENER,
    Delivery,
    PeerDown,
    PeerFailed,
    PeerGone,
    PeerUp,
    Received,
)
from luwu.transport.lanes import Lane, gone
from luwu.transport.monitor import LOST
from luwu.transport.stripes import (
    LINK_ID_BYTES,
    Announced,
    InOrder,
    Link,
    announcement,
    read_announcement,
)
from luwu.transport.zeromq import ZeroMqTransport

_NS_PER_MS: Final = 1_000_000


class Links:
    """All links of one transport, and the inner peers that are their stripes."""

    def __init__(self, inner: ZeroMqTransport) -> None:
        self.ready: deque[Received] = deque()
        """Events for our caller."""
        self._inner = inner
        self._held_bytes_max = inner.credit_bytes + PAYLOAD_BYTES_MAX
        self._stripes: dict[str, tuple[Link, int] | None] = {}
        """By the inner transport's names; None: ignored until its connection ends."""
        self._up: dict[str, Link] = {}
        """Those that are up or ending, by peer."""
        self._by_id: dict[bytes, Link] = {}
        """Those that dial us."""
        self.timed: set[Link] = set()
        """Those that must be whole, or over, in time: `wait_ns` and `look_at_the_clock`."""

    def dial(self, peer: str, endpoint: str, count: int) -> None:
        """Seek a peer over so many connections; see `Transport.dial`."""
        names = [peer, *(f"{peer}, stripe {index}" for index in range(1, count))]
        link = self._new(peer, os.urandom(LINK_ID_BYTES), names, endpoint)
        for index, name in enumerate(names):
            greeting = announcement(Announced(link.link_id, index, count))
            self._inner.dial(name, endpoint, greeting=greeting)
            self._stripes[name] = (link, index)

    def __contains__(self, peer: str) -> bool:
        """True if this is a peer of several stripes, or one of them."""
        return peer in self._stripes or peer in self._up

    def concern(self, heard: Received) -> bool:
        """True if this is news of a stripe: for `understand`, not for our caller."""
        return heard.peer in self._stripes or isinstance(heard, Greeted)

    def lane(self, peer: str) -> Lane:
        """All ways to a peer. Raises PeerGone."""
        link = self._up.get(peer)
        if link is None or link.lane is None:
            raise gone(peer)
        return link.lane

    def close(self) -> None:
        """Forget everything; the inner transport is closed."""
        for held in (self._stripes, self._up, self._by_id, self.timed, self.ready):
            held.clear()

    # ---------------------------------------------------------------------- what is heard

    def understand(self, heard: Received) -> None:
        """News of a stripe."""
        if isinstance(heard, Greeted):
            self._greeted(heard)
            return
        stripe = self._stripes[heard.peer]
        if isinstance(heard, PeerDown) and (stripe is None or stripe[0].endpoint is None):
            del self._stripes[heard.peer]
        if stripe is None:
            return
        link, index = stripe
        if isinstance(heard, Delivery):
            link.messages.put(index, heard)
            if link.is_up:
                self._hand_out(link)
            elif link.messages.are_too_many:
                self._break(link)
        elif isinstance(heard, PeerUp):
            self._met(link)
        elif isinstance(heard, PeerDown):
            self._lost(link, index)
        else:
            self._failed(link, index, heard)

    def _greeted(self, heard: Greeted) -> None:
        """A connection to our listener says what it is."""
        self._stripes[heard.peer] = None
        announced = read_announcement(heard.greeting)
        if announced is None:
            self._refuse("announced a connection that cannot be")
            return
        link, index = self._by_id.get(announced.link_id), announced.index
        if link is None:
            link = self._new("", announced.link_id, [None] * announced.count, endpoint=None)
            link.identity = heard.identity
            self._by_id[announced.link_id] = link
        elif len(link.names) != announced.count or link.names[index] is not None:
            self._refuse("announced a connection that is there already")
            return
        elif link.identity != heard.identity:
            self._refuse("announced a connection of a link that another key began")
            return
        link.names[index] = heard.peer
        if index == 0:
            link.peer = heard.peer
        self._stripes[heard.peer] = (link, index)
        self._met(link)

    def _met(self, link: Link) -> None:
        """One more stripe is there."""
        link.met_count += 1
        if link.met_count < len(link.names):
            if link.deadline_ns is None:
                # The side that can dial anew gives up first, and not before libzmq tried twice.
                patience = 2 if link.endpoint is not None else 3
                self._set_deadline(link, patience * self._inner.timing.handshake_ms)
            return
        link.is_up, link.is_late, link.deadline_ns = True, False, None
        self.timed.discard(link)
        self._up[link.peer] = link
        self.ready.append(PeerUp(link.peer, link.identity))
        try:
            lanes = [self._inner.lane(name) for name in link.names if name is not None]
        except PeerGone:  # one has ended in the meantime
            self._set_deadline(link, self._inner.timing.linger_ms)
        else:
            ways = [way for lane in lanes for way in lane.ways]
            limit_bytes = self._inner.credit_bytes
            link.lane = Lane(
                link.peer, ways, limit_bytes, CONTROL_HEADER_BYTES_MAX, self._inner.gathering
            )
        self._hand_out(link)

    def _hand_out(self, link: Link) -> None:
        """Give our caller what is in order."""
        messages = link.messages
        while (delivery := messages.take()) is not None:
            delivery.peer = link.peer
            self.ready.append(delivery)
        if messages.is_over:
            self._finish(link, LOST)
        elif messages.are_too_many:
            self._break(link)

    def _lost(self, link: Link, index: int) -> None:
        """The connection of a stripe is over."""
        link.messages.end(index)
        if link.is_up:
            link.lane = None
            if link.deadline_ns is None:
                self._set_deadline(link, self._inner.timing.linger_ms)
            self._hand_out(link)
        elif link.endpoint is not None:
            self._give_up(link, "one of them ended before the others were there")
        # Else the others may have announced themselves already: they have until the deadline.

    def _failed(self, link: Link, index: int, failed: PeerFailed) -> None:
        """Something is wrong with a stripe."""
        if failed.final:
            for name in link.names:
                assert name is not None
                self._inner.drop(name)
                del self._stripes[name]
            self.timed.discard(link)
        elif index and not link.met_count:
            return  # all try the same, the first one tells
        self.ready.append(PeerFailed(link.known_as, failed.error, failed.final))

    # ---------------------------------------------------------------------- time

    def _set_deadline(self, link: Link, after_ms: int) -> None:
        link.deadline_ns = SYSTEM_CLOCK.now_ns() + after_ms * _NS_PER_MS
        self.timed.add(link)

    def wait_ns(self, timeout_ns: int | None) -> int | None:
        """The most time to wait; less than asked when a deadline comes before that."""
        for link in self.timed:
            assert link.deadline_ns is not None
            left_ns = max(0, link.deadline_ns - SYSTEM_CLOCK.now_ns())
            timeout_ns = left_ns if timeout_ns is None else min(timeout_ns, left_ns)
        return timeout_ns

    def look_at_the_clock(self, *, is_idle: bool) -> None:
        """End what is over time. While messages keep coming, what is missed may be among them, and
        we may just not have looked for long: then the time is given once more."""
        now_ns = SYSTEM_CLOCK.now_ns()
        for link in tuple(self.timed):
            assert link.deadline_ns is not None
            if now_ns < link.deadline_ns:
                continue
            if not is_idle and not link.is_late:
                link.is_late = True
                self._set_deadline(link, self._inner.timing.handshake_ms)
            elif link.is_up:
                self._finish(link, LOST)
            else:
                met = f"{link.met_count} of {len(link.names)} connections were there in time"
                self._give_up(link, f"only {met}")

    # ---------------------------------------------------------------------- the end of links

    def _finish(self, link: Link, reason: str) -> None:
        """The link was up and is over."""
        link.lane = None
        del self._up[link.peer]
        self.ready.append(PeerDown(link.peer, reason))
        self._let_go(link)

    def _break(self, link: Link) -> None:
        """The peer does not keep to the order."""
        who = link.known_as
        error = RemoteProtocolError(
            f"{f'peer {who!r}' if who else 'something at our listener'} sent more than "
            f"{self._held_bytes_max} bytes ahead of their turn. Its connections are closed; does "
            f"the peer have the same version?"
        )
        self.ready.append(PeerFailed(who, error, final=False))
        if link.is_up:
            self._finish(link, "it broke the order of its messages")
        else:
            self._let_go(link)

    def _give_up(self, link: Link, why: str) -> None:
        """The link was not up yet."""
        if link.endpoint is not None:
            error = ConnectionFailed(
                f"cannot reach {link.endpoint} (peer {link.peer!r}) over {len(link.names)} "
                f"connections: {why}. Connecting again."
            )
            self.ready.append(PeerFailed(link.peer, error, final=False))
        else:
            self._refuse(f"wanted {len(link.names)} connections, but {why}")
        self._let_go(link)

    def _refuse(self, what: str) -> None:
        error = RemoteProtocolError(
            f"something at our listener {what}. It was rejected; is its version the same as ours?"
        )
        self.ready.append(PeerFailed(LISTENER, error, final=False))

    def _let_go(self, link: Link) -> None:
        """Hear no more of this link; dial it anew if we dialled it."""
        self.timed.discard(link)
        if link.endpoint is None:
            del self._by_id[link.link_id]
            for name in link.names:
                if name in self._stripes:
                    assert name is not None
                    self._stripes[name] = None
            return
        names = [name for name in link.names if name is not None]
        sought = self._new(link.peer, os.urandom(LINK_ID_BYTES), names, link.endpoint)
        for index, name in enumerate(names):
            self._stripes[name] = (sought, index)
            self._inner.redial(name, announcement(Announced(sought.link_id, index, len(names))))

    def _new(
        self, peer: str, link_id: bytes, names: Sequence[str | None], endpoint: str | None
    ) -> Link:
        messages = InOrder(len(names), self._held_bytes_max)
        return Link(peer, link_id, list(names), messages, endpoint)
