"""Readers: their requests go up as they are, and answers back to who asked. Pure.

One connection may have a few readers (`ReaderRoutes`); requests of more are answered here, so that
one connection cannot take all places that the node has for readers, or the ways back to others.

Of several optimizer nodes, all hold the same version for a reader (`JointReaders`):

    a reader sends   the nodes are sent                      the reader is sent
    Open             Open, all that count, once they are     Opened, when all hold that version
                     at one version
    Read             Read, one that holds the page           Content; by another, if one is lost
    Shut             Shut, all                               Gone

A node forgets who asks it nothing, so those that a reader does not read from are sent its Open
again and again. One that was started again holds nothing any more: the reader goes on with the
others as long as they have all pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from luwu.base.errors import RemoteProtocolError
from luwu.base.limits import READERS_OF_CONNECTION_MAX
from luwu.protocol.actions import PARENT, Payload, Send
from luwu.protocol.epoch import nodes_of
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.reading import ATTACHED, parse_facts
from switch_emu.switch.core.parents import Parents
from switch_emu.switch.core.standings import Position, Standings

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


KEEP_NS: Final = 10 * 10**9
"""A node that was sent nothing for so long is sent Open again; an idle reader reads every 20 s, and
a node forgets one that is silent for 30 s if it needs the place."""


@dataclass(slots=True)
class _Reader:
    asked: wire.ReaderRequest
    """Its last request: what else is sent in its name has the same stamp."""
    version: int = -1
    """That it holds, or is to hold."""
    is_known: bool = False
    """It held the version before this switch was started: it cannot hold another."""
    holders: dict[int, bytes] = field(default_factory=dict)
    """The nodes that hold the version for it, and their facts."""
    shut_at: set[int] = field(default_factory=set)
    """The nodes that are to forget another version, and will say Gone."""
    sent_ns: dict[int, int] = field(default_factory=dict)
    """When each node was last sent something."""
    opened: wire.Opened | None = None
    facts: bytes = b""


class JointReaders:
    """See the module."""

    def __init__(
        self, outbox: Outbox, parents: Parents, standings: Standings, routes: ReaderRoutes
    ) -> None:
        self._outbox, self._parents, self._at = outbox, parents, standings
        self._routes = routes
        self._readers: dict[int, _Reader] = {}
        """The one that asked last is the last."""
        self._position: Position | None = None
        """All members are decided at its version; None: some may be at the next."""

    def pause(self) -> None:
        """The members are to decide a version, or another attempt: no version is opened."""
        self._position = None

    def resume(self, position: Position) -> None:
        """All members are decided at this version."""
        if position.version.number >= 0:
            self._position = position
            for reader in self._readers.values():
                self._open(reader)

    # ---------------------------------------------------------------------- from readers

    def asked(self, m: wire.ReaderRequest) -> None:
        """A reader asks for something."""
        if isinstance(m, wire.Shut):
            reader = self._readers.pop(m.reader, None)
            nodes = nodes_of(self._at.now.members) if reader is None else tuple(reader.sent_ns)
            for node in nodes:
                self._send(node, m)
            self._routes.down(self._outbox.stamped(wire.Gone, reader=m.reader, text="it was shut"))
            return
        reader = self._readers.pop(m.reader, None)
        if reader is None:
            reader = _Reader(m)
            if isinstance(m, wire.Read):
                reader.version, reader.is_known = m.step, True
        self._readers[m.reader] = reader
        reader.asked = m
        if len(self._readers) > ROUTES_MAX:
            self._forget(next(iter(self._readers.values())))
        if reader.opened is None:
            self._open(reader)
        elif isinstance(m, wire.Open):
            self._routes.down(reader.opened, reader.facts)
        elif isinstance(m, wire.Read):
            self._read(reader, m)

    def _open(self, reader: _Reader) -> None:
        """Ask all members to hold the version that they are at."""
        position = self._position
        if position is None or reader.opened is not None:
            return
        if reader.version != position.version.number and not reader.is_known:
            for node in tuple(reader.holders):
                self._shut(reader, node)
            reader.version = position.version.number
        for node in nodes_of(position.members):
            if node not in reader.holders:
                self._say(reader, node, wire.Open)
        self._open_if_all_hold(reader)

    def _read(self, reader: _Reader, m: wire.Read) -> None:
        count = self._parents.count
        stripe = 0 if m.field.startswith(ATTACHED) else self._parents.stripe(m.index)
        owners = self._parents.owners(stripe)
        holders = [node for node in owners if node in reader.holders]
        there = [node for node in holders if not self._at.nodes[node].is_away] or holders
        node, now_ns = there[m.index // count % len(there)], self._outbox.now_ns
        reader.sent_ns[node] = now_ns
        self._send(node, m)
        for each in reader.holders:
            if now_ns - reader.sent_ns[each] >= KEEP_NS:
                self._say(reader, each, wire.Open)

    # ---------------------------------------------------------------------- from nodes

    def opened(self, node: int, m: wire.Opened, facts: bytes) -> None:
        """A node holds a version for a reader."""
        reader = self._readers.get(m.reader)
        if reader is None:
            return  # the node forgets it too
        if m.step != reader.version:
            self._shut(reader, node)
            if reader.is_known or reader.opened is not None:
                self._lack(reader, node, "an optimizer node was started again; open it again")
            return
        if reader.opened is not None:
            return
        try:
            held, reader.holders[node] = parse_facts(facts), facts
            self._parents.learn_chunks(held)
        except RemoteProtocolError as exc:
            self._outbox.note("switch.misfit", level="WARNING", node=node, text=str(exc))
            return
        self._open_if_all_hold(reader)

    def _open_if_all_hold(self, reader: _Reader) -> None:
        members = nodes_of((self._position or self._at.now).members)
        if not all(node in reader.holders for node in members):
            return
        first = next(node for node in self._parents.owners(0) if node in reader.holders)
        reader.facts = reader.holders[first]
        reader.opened = self._outbox.stamped(
            wire.Opened, step=reader.version, reader=reader.asked.reader
        )
        self._routes.down(reader.opened, reader.facts)

    def content(self, _: int, m: wire.Content, payload: Any) -> None:
        """A node has read a field."""
        self._routes.down(m, payload)

    def gone(self, node: int, m: wire.Gone, _: Any = None) -> None:
        """A node holds no version for a reader any more."""
        reader = self._readers.get(m.reader)
        if reader is None:
            return
        if node in reader.shut_at:
            reader.shut_at.discard(node)
            return
        self._lack(reader, node, m.text)

    def _lack(self, reader: _Reader, node: int, text: str) -> None:
        """One node less holds the version: others are read, if they have all pages."""
        reader.holders.pop(node, None)
        holders = sum(1 << each for each in reader.holders)
        if reader.opened is not None and self._parents.covers(holders):
            return
        self._forget(reader)
        number = reader.asked.reader
        self._routes.down(self._outbox.stamped(wire.Gone, reader=number, text=text))

    # ---------------------------------------------------------------------- what is sent

    def _forget(self, reader: _Reader) -> None:
        del self._readers[reader.asked.reader]
        for node in reader.sent_ns:
            self._say(reader, node, wire.Shut)

    def _shut(self, reader: _Reader, node: int) -> None:
        reader.holders.pop(node, None)
        reader.shut_at.add(node)
        self._say(reader, node, wire.Shut)

    def _say(self, reader: _Reader, node: int, kind: type[wire.Open | wire.Shut]) -> None:
        """Send a node something in the reader's name."""
        reader.sent_ns[node] = self._outbox.now_ns
        stamp = {each.name: getattr(reader.asked, each.name) for each in fields(wire.Message)}
        self._send(node, kind(**stamp, reader=reader.asked.reader))

    def _send(self, node: int, m: wire.Message) -> None:
        self._outbox.actions.append(Send((self._parents.names[node],), m))
