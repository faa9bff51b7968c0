"""The way of readers through a switch: requests up as they are, answers back to who asked. Pure."""

from __future__ import annotations

from typing import Any

from luwu.wire import messages as wire
from luwu.wire.actions import PARENT, Drop, Payload, Send

ROUTES_MAX = 64
"""Readers whose connection is known; the one not heard of for longest is forgotten first, and
makes itself known again by asking again."""


class ReaderRoutes:
    """`actions` is the switch's list."""

    def __init__(self, actions: list[Any]) -> None:
        self._actions = actions
        self._peers: dict[int, str] = {}
        """Reader -> the connection it was last heard on; the latest last."""

    def up(self, peer: str, m: wire.ReaderRequest) -> None:
        """A reader asks."""
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
