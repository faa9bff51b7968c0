"""The transport interface: what shells know of links, and nothing about what travels on them.

One `Transport` serves one process role. It may listen (children connect), dial (one parent or
several peers) or both, as a switch does; a single `receive` serves all of it. Messages are a header
and at most `BUFFERS_COUNT_MAX` buffers; a transport reads neither.

A peer's life, as `receive` tells it:

    (unknown) -> up      PeerUp       messages may pass both ways
    up        -> down    PeerDown     after the last message that arrived
    down      -> up      PeerUp       a dialled peer is sought again without any action
    any       -> any     PeerFailed   something went wrong; `final` says that it will not mend

Invariants; the conformance suite cites them by number:

    T1  `peer` is what the transport knows, never what a message claims. A listener names its peers
        itself ("p-" and hexadecimal digits); a dialled peer bears the name given to `dial`.
        Where connections have keys, PeerUp also says whose key a listener's peer has.
    T2  Messages of one connection arrive whole, once, in order, or not at all; every connection has
        its own PeerUp and PeerDown, and no message of a connection passes its PeerUp or PeerDown.
    T3  `send` never blocks. What is queued to one peer is bounded by credit, in bytes.
    T4  The buffers of a send are read until its handle is done, and not after.
    T5  What a peer sends cannot raise out of `receive`: it is dropped and reported as PeerFailed.
    T6  After `close` no thread, socket, file or directory of the transport is left.

Only one thread at a time may use a transport; `wake` alone is for any thread. Received buffers are
read-only, since another process or peer may share them, and need not be aligned.

Credit is in bytes (`check_credit`): ZeroMQ's marks count messages, and a message here is anything
from 50 bytes to 64 MiB.
"""

from __future__ import annotations

import mmap
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from luwu.base.closing import Closing
from luwu.base.errors import LuwuError
from luwu.base.keys import Identity
from luwu.base.limits import CONTROL_HEADER_BYTES_MAX, PAYLOAD_BYTES_MAX

BUFFERS_COUNT_MAX: Final = 2
"""Buffers that may follow one header."""

LISTENER: Final = ""
"""`PeerFailed.peer` of a connection that ended before it became a peer."""

Buffer: TypeAlias = memoryview | bytes


class PeerGone(LuwuError):
    """The peer is unknown, not connected yet, or has departed; nothing was sent."""

    exit_code = 3
    code = "E305"


class CreditExceeded(LuwuError):
    """More bytes than the peer's credit; our own mistake, nothing was sent."""

    code = "E106"


class SendHandle(Protocol):
    """The handle that `send` returns."""

    @property
    def done(self) -> bool:
        """The transport no longer reads the buffers; says nothing of their arrival."""


@dataclass(eq=False, slots=True, repr=False)
class Delivery:
    """One received message; its buffers are valid until `release`."""

    peer: str
    header: bytes
    buffers: list[memoryview]
    on_release: Callable[[], object] | None = None
    is_shared: bool = field(default=False, kw_only=True)
    """The buffers are the sender's memory, mapped here: one place has one address for good."""

    def release(self) -> None:
        """Give the buffers back; reading them, or arrays made of them, is a mistake from now on.

        Any thread may call it.
        """
        self.buffers = []
        on_release, self.on_release = self.on_release, None
        if on_release is not None:
            on_release()

    def __repr__(self) -> str:
        sizes = [view.nbytes for view in self.buffers]
        return f"Delivery(peer={self.peer!r}, header={self.header!r}, buffer_bytes={sizes})"


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A connection to `peer` exists."""

    peer: str
    identity: Identity | None = None
    """The owner of the key that it proved; None: the connection has no keys, or we dialled it."""


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The connection to `peer` ended; a dialled peer is sought again."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class PeerFailed:
    """Something is wrong with `peer`, or with a stranger at our listener (`LISTENER`)."""

    peer: str
    error: LuwuError
    final: bool
    """Nothing will mend it: a dialled peer is not sought any more."""


Received: TypeAlias = Delivery | PeerUp | PeerDown | PeerFailed


class Transport(Closing):
    """The links of one process role; see the module's text for what always holds."""

    @abstractmethod
    def listen(self, endpoint: str, *, advertise: str | None = None) -> str:
        """Accept peers at `endpoint`; the endpoint that others dial is returned.

        Port 0 and the name `auto` let the transport choose. `advertise` is the host, or host and
        port, to return in place of the one listened on. Raises ConfigError, also when in use.
        """

    @abstractmethod
    def dial(self, peer: str, endpoint: str) -> None:
        """Connect to `endpoint` and call it `peer`; PeerUp comes from `receive`.

        To dial where no process listens is no error: it is reported once and tried until it works,
        over tcp at each of several places, or where a `MovableEndpoint` is by then. Raises
        ConfigError for an endpoint that cannot be one, ConnectionFailed for an unknown host.
        """

    @abstractmethod
    def reserve(self, nbytes: int) -> memoryview:
        """Writable, page-aligned memory for a payload, from where this transport sends best.

        It is given back when the last view of it is gone. Fresh pages cost a fault each: reuse it.
        Raises CreditExceeded where such memory is bounded and has no room left for so much.
        """

    @abstractmethod
    def send(self, peer: str, header: bytes, buffers: Sequence[Buffer] = ()) -> SendHandle:
        """Queue one message; never blocks. Large buffers are not copied: see T4.

        Raises PeerGone, and CreditExceeded if a message with buffers is larger than the credit
        left. A header alone may pass a used-up credit, within a small reserve, so that an answer
        is never held up by data. ValueError for what no receiver would accept.
        """

    def gather(self) -> None:
        """From now on messages to one peer may wait, to leave together: until `flush`, until they
        are many, or until `receive` blocks. For a loop that ends each turn with `flush`."""

    def flush(self) -> None:
        """Let all messages leave that wait for others; a connection that has ended loses them."""

    @abstractmethod
    def credit(self, peer: str) -> int:
        """Bytes that may be queued to `peer` now: the limit less what was sent and is not done.

        Its return does not end a blocked `receive`. Raises PeerGone.
        """

    @abstractmethod
    def receive(self, timeout_ns: int | None) -> Received | None:
        """The next message or event; None after `timeout_ns` or a `wake`; None means no limit.

        Raises KeysFailed where it is unknown who may connect.
        It may return None earlier, when peers gave buffers back and handles became done.
        """

    @abstractmethod
    def wake(self) -> None:
        """Let a blocked `receive`, or the next one that would block, return None. Any thread."""

    @abstractmethod
    def close(self) -> None:
        """Send what is queued within a bounded time, then let go of everything; may be repeated.

        Over tcp the end of it is lost if the peer sends something after the close, and had not
        read what came before: who must know that its last message arrived waits for an answer.
        """


def checked_views(
    header: bytes, buffers: Sequence[Buffer], *, header_bytes_max: int = CONTROL_HEADER_BYTES_MAX
) -> list[memoryview]:
    """The buffers as flat views of bytes. Raises ValueError for what no receiver would accept."""
    if not 0 < len(header) <= header_bytes_max:
        raise ValueError(f"header of {len(header)} bytes; 1 to {header_bytes_max} are allowed")
    if not buffers:
        return []
    if len(buffers) > BUFFERS_COUNT_MAX:
        raise ValueError(f"{len(buffers)} buffers; at most {BUFFERS_COUNT_MAX} are allowed")
    views = [memoryview(buffer) for buffer in buffers]
    for index, view in enumerate(views):
        if not view.c_contiguous or view.nbytes > PAYLOAD_BYTES_MAX:
            raise ValueError(
                f"buffer {index} has {view.nbytes} bytes, contiguous: {view.c_contiguous}; "
                f"it must be contiguous and of at most {PAYLOAD_BYTES_MAX} bytes"
            )
        if view.format != "B" or view.ndim != 1:
            views[index] = view.cast("B")
    return views


HEADER_RESERVE_BYTES: Final = 1024 * 1024
"""Bytes that messages without buffers may queue beyond the credit: answers never wait for data."""


def check_credit(
    peer: str, header_bytes: int, payload_bytes: int, queued_bytes: int, limit_bytes: int
) -> None:
    """Raise CreditExceeded if a message of this size may not be queued to a peer now."""
    limit = limit_bytes if payload_bytes else limit_bytes + HEADER_RESERVE_BYTES
    if queued_bytes + header_bytes + payload_bytes > limit:
        raise CreditExceeded(
            f"{header_bytes} + {payload_bytes} bytes for peer {peer!r}, which has {queued_bytes} "
            f"bytes queued of {limit}; ask credit() before sending, or raise credit_bytes"
        )


def gone(peer: str) -> PeerGone:
    """The error of sending to a peer that is not there."""
    return PeerGone(
        f"peer {peer!r} is not connected: unknown, not up yet, or departed; nothing was sent. "
        f"Wait for its PeerUp."
    )


def anonymous_memory(nbytes: int) -> memoryview:
    """Private page-aligned memory of this process, exactly `nbytes` long."""
    if nbytes == 0:
        return memoryview(bytearray())  # an empty mapping does not exist
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(mapping)
