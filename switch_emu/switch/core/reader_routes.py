"""The way of readers through a switch: requests up as they are, answers back to who asked.

One connection may have a few readers; requests of more are answered here, so that one connection
cannot take all places that the node has for readers, or the ways back to others. Pure.
"""

from __future__ import annotations

from luwu.base.limits import READERS_OF_CONNECTION_MAX
from luwu.protocol.actions import PARENT, Payload
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire

ROUTES_MAX = 64
"""Readers whose connection is known; the one that was quiet for longest is forgotten first, and
makes itself known again by asking again."""


class ReaderRoutes:
    """See the module."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._peers: dict[int, str] = {}
        """Reader -> the connection by which it last asked; the latest last."""

    def up(self, peer: str, m: wire.ReaderRequest) -> None:
        """A reader asks."""
        others = sum(each == peer for reader, each in self._peers.items() if reader != m.reader)
        if others >= READERS_OF_CONNECTION_MAX:
            text = f"this connection has {others} readers already; shut one of them"
            gone = self._outbox.stamped(wire.Gone, reader=m.reader, text=text)
            self._outbox.send_all((peer,), gone)
            return
        self._peers.pop(m.reader, None)
        self._peers[m.reader] = peer
        if len(self._peers) > ROUTES_MAX:
            del self._peers[next(iter(self._peers))]
        self._outbox.send_all((PARENT,), m)

    def down(
        self, m: wire.ReaderAnswer, payload: Payload | bytes | None = None, payload_bytes: int = 0
    ) -> None:
        """The node answers."""
        peer = self._peers.get(m.reader)
        if peer is not None:
            self._outbox.send_all((peer,), m, payload)
        if isinstance(m, wire.Content):
            self._outbox.drop(payload)
        if isinstance(m, wire.Gone):
            self._peers.pop(m.reader, None)

    def lost(self, peer: str) -> None:
        """A connection has ended; its readers ask again by another, if they are alive."""
        self._peers = {reader: each for reader, each in self._peers.items() if each != peer}
