"""The readers of the node's state, while training goes on. Pure.

    Open    a version is pinned for the reader, once: PinVersion -> pinned -> Opened
    Read    of that version: ReadField -> field_read -> Content
    Shut    the pin is released: Unpin, Gone

A reader is known by its number alone, and where its last message came from. It is no member: no
step waits for it and no attempt concerns it. One that sends nothing for `LEASE_NS` is forgotten; if
there are `READERS_MAX`, for `IDLE_NS`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from luwu.base.limits import READERS_MAX, TEXT_CHARS_MAX
from luwu.protocol.actions import Payload, Send
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from switch_emu.node.core.actions import PinVersion, ReadField, Unpin

LEASE_NS = 60 * 10**9
IDLE_NS = 30 * 10**9
"""Readers that are open and idle send something every 20 s."""


@dataclass(slots=True)
class _Reader:
    peer: str
    last_ns: int
    opened: wire.Opened | None = None
    facts: bytes = b""
    under_way: set[ReadField] = field(default_factory=set)


class Readers:
    """The readers, and the version that is pinned for each."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox, self._actions = outbox, outbox.actions
        self.by_number: dict[int, _Reader] = {}

    def received(self, now_ns: int, peer: str, m: wire.ReaderRequest, *, loaded: bool) -> None:
        """A reader asks for something; `loaded`: there is a decided version."""
        reader = self.by_number.get(m.reader)
        if reader is not None:
            reader.peer, reader.last_ns = peer, now_ns
        if isinstance(m, wire.Shut):
            self._forget(m.reader)
            self._send_gone(peer, m.reader, "it was shut")
        elif isinstance(m, wire.Open):
            self._open(now_ns, peer, m.reader, reader, loaded=loaded)
        elif reader is None:
            text = (
                "the node does not know this reader (any more): it was started again, or nothing "
                f"was read for {IDLE_NS // 10**9} to {LEASE_NS // 10**9} s; open it again"
            )
            self._send_gone(peer, m.reader, text)
        else:
            read = ReadField(m.reader, m.index, m.field, m.dtype)
            if read not in reader.under_way:
                reader.under_way.add(read)
                self._actions.append(read)

    def pinned(self, number: int, version: int, facts: bytes) -> None:
        """The version that `PinVersion` asked for."""
        reader = self.by_number.get(number)
        if reader is None:
            self._actions.append(Unpin(number))
            return
        reader.opened = self._outbox.stamped(wire.Opened, step=version, reader=number)
        reader.facts = facts
        self._actions.append(Send((reader.peer,), reader.opened, facts))

    def refused(self, number: int, text: str) -> None:
        """`PinVersion` failed: no version can be pinned."""
        reader = self.by_number.pop(number, None)
        if reader is not None:
            self._send_gone(reader.peer, number, text)

    def field_read(self, read: ReadField, payload: Payload | None, text: str = "") -> None:
        """Handle the result of `ReadField`; None: it failed, and `text` is the reason."""
        reader = self.by_number.get(read.reader)
        if reader is not None:
            reader.under_way.discard(read)
            if payload is None:
                self._forget(read.reader)
                self._send_gone(reader.peer, read.reader, text)
            else:
                assert reader.opened is not None
                content = self._outbox.stamped(
                    wire.Content, step=reader.opened.step, index=read.chunk, part=0,
                    reader=read.reader, field=read.field, dtype=read.dtype,
                )  # fmt: skip
                self._actions.append(Send((reader.peer,), content, payload))
        self._outbox.drop(payload)

    def tick(self, now_ns: int) -> None:
        """Forget readers that send nothing any more."""
        for number, reader in list(self.by_number.items()):
            if now_ns - reader.last_ns >= LEASE_NS and not reader.under_way:
                self._forget(number)

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do."""
        idle = [r.last_ns for r in self.by_number.values() if not r.under_way]
        return min(idle) + LEASE_NS if idle else None

    def _open(
        self, now_ns: int, peer: str, number: int, reader: _Reader | None, *, loaded: bool
    ) -> None:
        if reader is not None:
            if reader.opened is not None:
                self._actions.append(Send((peer,), reader.opened, reader.facts))
        elif len(self.by_number) >= READERS_MAX and not self._make_room(now_ns):
            text = f"the node holds versions for {READERS_MAX} readers already; try again later"
            self._send_gone(peer, number, text)
        elif loaded:  # else it asks again
            self.by_number[number] = _Reader(peer, now_ns)
            self._actions.append(PinVersion(number))

    def _make_room(self, now_ns: int) -> bool:
        """Make room for another reader, at the cost of the one silent for longest."""
        idle = [(r.last_ns, number) for number, r in self.by_number.items() if not r.under_way]
        last_ns, number = min(idle, default=(now_ns, 0))
        if now_ns - last_ns < IDLE_NS:
            return False
        self._forget(number)
        return True

    def _forget(self, number: int) -> None:
        if self.by_number.pop(number, None) is not None:
            self._actions.append(Unpin(number))

    def _send_gone(self, peer: str, number: int, text: str) -> None:
        gone = self._outbox.stamped(wire.Gone, reader=number, text=text[:TEXT_CHARS_MAX])
        self._actions.append(Send((peer,), gone))
