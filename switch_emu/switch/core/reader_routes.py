"""The way of readers through a switch: requests up as they are, answers back to who asked.

One connection may have a few readers; requests of more are answered here, so that one connection
cannot take all places that the node has for readers, or the ways back to others. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from luwu.base.limits import READERS_OF_CONNECTION_MAX
from luwu.protocol.actions import PARENT, Drop, Payload, Send
from luwu.wire import messages as wire

ROUTES_MAX = 64
"""Readers whose connection is known; the one not heard of for longest is forgotten first, and
makes itself known again by asking again."""


class ReaderRoutes:
    """`actions` is the switch's list; `stamped` makes a message of its own."""

    def __init__(self, actions: list[Any], stamped: Callable[..., Any]) -> None:
        self._actions, self._stamped = actions, stamped
        self._peers: dict[int, str] = {}
        """Reader -> the connection it was last heard on; the latest last."""

    def up(self, peer: str, m: wire.ReaderRequest) -> None:
        """A reader asks."""
        others = sum(each == peer for reader, each in self._peers.items() if reader != m.reader)
        if others >= READERS_OF_CONNECTION_MAX:
            text = f"this connection has {others} readers already; shut one of them"
            gone = self._stamped(wire.Gone, reader=m.reader, text=text)
            self._actions.append(Send((peer,), gone))
            return
        self._peers.pop(m.reader, None)
        self._peers[m.reader] = peer
        if len(self._peers) > ROUTES_MAX:
            del self._peers[next(iter(self._peers))]
        self._actions.append(Send((PARENT,), m))

    def down(self, m: wire.ReaderAnswer, payload: Payload | bytes | None) -> None:
        """The node answers."""
        peer = self._peers.get(m.reader)
        if peer is not None:
            self._actions.append(Send((peer,), m, payload))
        if isinstance(m, wire.Content) and payload is not None:
            self._actions.append(Drop(payload))
        if isinstance(m, wire.Gone):
            self._peers.pop(m.reader, None)

    def lost(self, peer: str) -> None:
        """A connection has ended; its readers ask again by another, if they are alive."""
        self._peers = {reader: each for reader, each in self._peers.items() if each != peer}
