"""Reads a decided version of a running job, from any process that may connect to it.

    with StateReader(transport, endpoint=..., job=...) as reader:
        reader.open()                                        the newest version is held
        reader.read([FieldRead(0, "weight", into), ...])     as often as one likes

Training goes on meanwhile; what is read stays that of one step. The protocol is in
`luwu/nic/core/reader.py`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.closing import Closing
from luwu.base.errors import (
    ConnectionFailed,
    DeadlineError,
    LuwuError,
    RemoteProtocolError,
    StateError,
)
from luwu.nic.core.reader import FieldReceived, ReaderCore, ReaderGone, VersionOpened
from luwu.protocol.actions import PARENT, Drop, Send
from luwu.transport.interface import Delivery, PeerDown, PeerFailed, PeerGone, PeerUp, Transport
from luwu.wire.codec import decode, encode
from luwu.wire.description import Description
from luwu.wire.reading import ATTACHED, VersionFacts

WINDOW = 8
"""Fields requested ahead of those received."""

_SHUT_S = 2.0
"""How long `close` waits for an answer; the node forgets silent readers."""


@dataclass(frozen=True, slots=True)
class FieldRead:
    """One field of a page, and where it goes."""

    chunk: int
    field: str
    into: memoryview
    """Memory for the field: as many bytes as it has in `dtype`."""
    dtype: str = "float32"
    """Weights may be rounded, as they travel to workers."""


class StateReader(Closing):
    """See the module. One thread uses it."""

    facts: VersionFacts
    """The facts of the version, once it is open."""
    description: Description
    """The job's."""

    def __init__(
        self, transport: Transport, *, endpoint: str, job: int, connect_timeout_s: float = 60.0,
        grace_s: float = 600.0,
    ) -> None:  # fmt: skip
        """The transport is the reader's from now on: `close` closes it. Raises ConfigError or
        ConnectionFailed, and closes it, if the endpoint cannot be dialled."""
        self._transport, self._endpoint = transport, endpoint
        self._connect_timeout_s, self._grace_s = connect_timeout_s, grace_s
        self._core = ReaderCore(job=job, reader=secrets.randbits(62))
        self._is_up = self._is_open = self._is_closed = self._is_gone = False
        self._trouble = ""
        self._fields: list[FieldReceived] = []
        try:
            transport.dial(PARENT, endpoint)
        except BaseException:
            transport.close()
            raise

    @property
    def version(self) -> int:
        """Count of decided steps in the version that is held."""
        return self.facts.version

    def open(self) -> None:
        """Hold the newest decided version. Raises ConnectionFailed, DeadlineError, StateError."""
        self._wait(lambda: self._is_up, "an answer", self._connect_timeout_s)
        self._do(self._core.open(SYSTEM_CLOCK.now_ns()))
        self._wait(lambda: self._is_open, "a decided version", self._grace_s)

    def read(self, reads: Iterable[FieldRead]) -> None:
        """Fill every `into`; several are under way at a time. Raises as `open` does."""
        asked: dict[tuple[int, str], FieldRead] = {}
        for read in reads:
            while len(asked) >= WINDOW or (read.chunk, read.field) in asked:
                self._fill(asked)
            asked[read.chunk, read.field] = read
            now_ns = SYSTEM_CLOCK.now_ns()
            self._do(self._core.read(now_ns, read.chunk, read.field, read.dtype))
        while asked:
            self._fill(asked)

    def read_attached(self, rank: int) -> bytes | None:
        """A rank's attachment to this version (`luwu.attach`); None if it has none."""
        sizes = self.facts.attached.get(rank)
        if sizes is None:
            return None
        pieces = [memoryview(bytearray(size)) for size in sizes]
        field = f"{ATTACHED}{rank}"
        self.read(FieldRead(index, field, piece) for index, piece in enumerate(pieces))
        return b"".join(pieces)

    def close(self) -> None:
        """Release the version and close the transport; may be repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._is_open and not self._is_gone:
                self._do(self._core.shut(SYSTEM_CLOCK.now_ns()))
                self._wait(lambda: self._is_gone, "goodbye", _SHUT_S)
        except LuwuError:
            pass  # the node is gone, or forgets us by itself
        finally:
            for field in self._fields:
                field.payload.release()  # type: ignore[attr-defined]
            self._transport.close()

    def _fill(self, asked: dict[tuple[int, str], FieldRead]) -> None:
        """Copy the fields received to where they go; wait if there are none."""
        self._wait(lambda: bool(self._fields), "what was asked for", self._grace_s)
        while self._fields:
            found = self._fields.pop()
            delivery: Any = found.payload
            read = asked.pop((found.chunk, found.field))
            data = delivery.buffers[0]
            try:
                if data.nbytes != read.into.nbytes:
                    raise RemoteProtocolError(
                        f"field {found.field} of chunk {found.chunk}: {data.nbytes} bytes came, "
                        f"expected {read.into.nbytes} of {read.dtype}"
                    )
                read.into.cast("B")[:] = data
            finally:
                data.release()
                delivery.release()

    def _wait(self, condition: Any, what: str, limit_s: float) -> None:
        end_ns = SYSTEM_CLOCK.now_ns() + int(limit_s * 1e9)
        while not condition():
            if SYSTEM_CLOCK.now_ns() >= end_ns:
                error = DeadlineError if self._is_up else ConnectionFailed
                trouble = f"; {self._trouble}" if self._trouble else ""
                raise error(
                    f"a reader of {self._endpoint} waited {limit_s:.0f} s for {what} "
                    f"({self._core.waits_for()}){trouble}; is the job still running?"
                )
            self._receive(end_ns)

    def _receive(self, end_ns: int) -> None:
        now_ns = SYSTEM_CLOCK.now_ns()
        tick_ns = self._core.next_tick_ns()
        until_ns = end_ns if tick_ns is None else min(end_ns, tick_ns)
        item = self._transport.receive(max(0, until_ns - now_ns))
        while item is not None:
            self._handle(item)
            item = self._transport.receive(0)
        self._do(self._core.tick(SYSTEM_CLOCK.now_ns()))

    def _handle(self, item: Any) -> None:
        match item:
            case Delivery():
                self._delivered(item)
            case PeerUp():
                self._is_up, self._trouble = True, ""
                self._do(self._core.reconnected(SYSTEM_CLOCK.now_ns()))
            case PeerDown(_, reason):
                self._trouble = f"the connection is gone: {reason}"
            case PeerFailed(_, error, final):
                self._trouble = str(error)
                if final:
                    raise error

    def _delivered(self, delivery: Delivery) -> None:
        message = decode(delivery.header, len(delivery.buffers))
        if message.IS_DATA and delivery.buffers:
            self._do(self._core.received(message, delivery))
            return
        data = bytes(delivery.buffers[0]) if delivery.buffers else None
        delivery.release()
        self._do(self._core.received(message, data))

    def _do(self, actions: Iterable[Any]) -> None:
        for action in actions:
            match action:
                case Send(_, message, _):
                    with suppress(PeerGone):  # it is asked again when the connection is back
                        self._transport.send(PARENT, encode(message))
                case Drop(payload):
                    payload.release()  # type: ignore[attr-defined]
                case VersionOpened(facts):
                    self.facts, self.description, self._is_open = facts, facts.job, True
                case FieldReceived():
                    self._fields.append(action)
                case ReaderGone(text):
                    self._is_gone = True
                    if not self._is_closed:
                        raise StateError(f"the node holds no version for this reader: {text}")
