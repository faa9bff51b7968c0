"""The way to one ZeroMQ peer: frames out and in, with their credit; messages sent together."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple

import zmq

from luwu.base.errors import RemoteProtocolError
from luwu.base.limits import ZERO_COPY_BYTES_MIN
from luwu.transport.interface import (
    BUFFERS_COUNT_MAX,
    Delivery,
    PeerFailed,
    PeerGone,
    SendHandle,
    check_credit,
    gone,
)

GATHERED_COUNT_MAX: Final = 64
"""Messages in one multipart."""

_FRAMES_COUNT_MAX: Final = 3 + GATHERED_COUNT_MAX * BUFFERS_COUNT_MAX
"""A routing id, an empty frame, headers, and all buffers of messages that were sent together."""

_PREFIX: Final = struct.Struct("<HB")


def gathered(headers: Sequence[bytes], buffers_counts: Sequence[int]) -> bytes:
    """The second frame of a multipart of several messages.

        alone      header, its buffers
        gathered   an empty frame; (bytes, count of buffers) of each header and the headers, one
                   after the other; the buffers of all

    A multipart costs a lock, a wake of libzmq's thread and a few calls at each end, however many
    messages are in it.
    """
    parts: list[bytes] = []
    for header, buffers_count in zip(headers, buffers_counts, strict=True):
        parts += _PREFIX.pack(len(header), buffers_count), header
    return b"".join(parts)


def read_gathered(
    frame: bytes, buffers_count: int, header_bytes_max: int
) -> list[tuple[bytes, int]]:
    """Headers and the counts of their buffers, which are so many in all. Raises
    RemoteProtocolError."""
    found: list[tuple[bytes, int]] = []
    at, is_sound = 0, True
    while is_sound and len(frame) - at >= _PREFIX.size:
        header_bytes, count = _PREFIX.unpack_from(frame, at)
        at += _PREFIX.size
        found.append((frame[at : at + header_bytes], count))
        at += header_bytes
        buffers_count -= count
        is_sound = (
            0 < header_bytes <= header_bytes_max
            and count <= BUFFERS_COUNT_MAX
            and len(found) <= GATHERED_COUNT_MAX
        )
    if not is_sound or not found or at != len(frame) or buffers_count:
        raise RemoteProtocolError(
            f"{len(frame)} bytes of headers, with {buffers_count} frames more than they announce, "
            f"are not messages that were sent together"
        )
    return found


_NOBLOCK: Final = int(zmq.NOBLOCK)
_NOBLOCK_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain integers: to combine flags of an Enum takes longer than to send a frame."""

BATCH_BYTES: Final = ZERO_COPY_BYTES_MIN
"""Bytes of copied messages that count as one for the credit; a tracked buffer ends a batch."""


_IS_DONE: Final = attrgetter("done")


@dataclass(frozen=True, slots=True)
class Sent:
    """Handle of a message whose buffers libzmq reads where they are; without trackers, a copy."""

    trackers: tuple[zmq.MessageTracker, ...] = ()

    @property
    def done(self) -> bool:
        """libzmq needs the buffers no more."""
        return all(map(_IS_DONE, self.trackers))


_COPIED: Final = Sent()


class Way(NamedTuple):
    """The connection to a peer: the socket, and the peer's address there if it has several."""

    socket: zmq.Socket[Any]
    address: bytes | None = None


@dataclass(eq=False, slots=True)
class Gathering:
    """The lanes of a transport on which messages wait, to leave together."""

    is_on: bool = False
    """Messages may wait."""
    lanes: dict[Lane, None] = field(default_factory=dict)

    def flush(self) -> None:
        """Let all messages leave."""
        while self.lanes:
            self.lanes.popitem()[0].flush()


class Lane:
    """The way to one peer, with its credit.

    When copied messages come to `BATCH_BYTES`, what was sent last is tracked: when libzmq needs it
    no more, it needs nothing of this batch, for the way is a FIFO. Messages that wait for others
    are of one batch, and copied.
    """

    def __init__(
        self, peer: str, way: Way, limit_bytes: int, header_bytes_max: int,
        gathering: Gathering,
    ) -> None:  # fmt: skip
        self.peer = peer
        self._way = way
        self.header_bytes_max = header_bytes_max
        self._limit_bytes, self._queued_bytes = limit_bytes, 0
        self._queued: deque[tuple[SendHandle, int]] = deque()
        self._batch_bytes = 0  # of the copied messages of this batch
        self._gathering = gathering
        self._headers: list[bytes] = []  # of messages that wait
        self._counts: list[int] = []  # of their buffers
        self._copies: list[bytes | memoryview | zmq.Frame] = []

    def credit_bytes(self) -> int:
        """Bytes that may be queued now; less than 64 KiB of copied messages may be left out."""
        while self._queued and self._queued[0][0].done:
            self._queued_bytes -= self._queued.popleft()[1]
        return max(0, self._limit_bytes - self._queued_bytes)

    def send(self, header: bytes, views: list[memoryview]) -> SendHandle:
        """Queue one message. Raises PeerGone and CreditExceeded, and then nothing was sent."""
        payload_bytes = sum(map(len, views))
        self.credit_bytes()
        check_credit(self.peer, len(header), payload_bytes, self._queued_bytes, self._limit_bytes)
        batch_bytes = self._batch_bytes + len(header) + payload_bytes
        self._headers.append(header)
        self._counts.append(len(views))
        if batch_bytes < BATCH_BYTES and self._gathering.is_on:
            self._batch_bytes = batch_bytes
            self._copies += map(bytes, views)
            if len(self._headers) < GATHERED_COUNT_MAX:
                self._gathering.lanes[self] = None
            else:
                self._leave(self._head())
            return _COPIED
        large = [len(view) >= ZERO_COPY_BYTES_MIN for view in views]
        trackers: list[zmq.MessageTracker] = []
        joined = self._head()
        head: bytes | zmq.Frame = joined
        mark: SendHandle | None = None
        if not any(large) and batch_bytes >= BATCH_BYTES:
            head, tracker = _tracked(joined)  # for the credit; the caller's buffers are copied
            mark = Sent((tracker,))
        for view, is_large in zip(views, large, strict=True):
            if is_large:
                frame, tracker = _tracked(view)
                self._copies.append(frame)
                trackers.append(tracker)
            else:
                self._copies.append(view)
        self._leave(head)
        handle = Sent(tuple(trackers)) if trackers else _COPIED
        if trackers:
            mark = handle
        if mark is None:
            self._batch_bytes = batch_bytes
        else:
            self._queued.append((mark, batch_bytes))
            self._queued_bytes += batch_bytes
            self._batch_bytes = 0
        return handle

    def flush(self) -> None:
        """Let the messages leave that wait; they are lost if the connection has ended."""
        if self._headers:
            with suppress(PeerGone):
                self._leave(self._head())

    def _head(self) -> bytes:
        """The frame before the buffers of all messages that wait."""
        if len(self._headers) == 1:
            return self._headers[0]
        return gathered(self._headers, self._counts)

    def _leave(self, head: bytes | zmq.Frame) -> None:
        """Write what waits. Raises PeerGone."""
        parts = [head, *self._copies] if len(self._headers) == 1 else [b"", head, *self._copies]
        self._headers.clear()
        self._counts.clear()
        self._copies.clear()
        last = len(parts) - 1
        socket, address = self._way
        try:
            if address is not None:
                socket.send(address, _NOBLOCK_MORE)
            for index, part in enumerate(parts):
                flags = _NOBLOCK_MORE if index < last else _NOBLOCK
                socket.send(part, flags, copy=not isinstance(part, zmq.Frame))
        except zmq.ZMQError as exc:  # only the first frame can be refused: no mark, no such peer
            raise gone(self.peer) from exc


def _tracked(data: bytes | memoryview) -> tuple[zmq.Frame, zmq.MessageTracker]:
    frame = zmq.Frame(data, track=True, copy=False)
    assert isinstance(frame.tracker, zmq.MessageTracker)
    return frame, frame.tracker


def received_of(
    lane: Lane, frames: list[zmq.Frame], frames_count: int
) -> list[Delivery | PeerFailed]:
    """The messages in the frames after a routing id; what transports say to each other is none."""
    peer, header_bytes = lane.peer, len(frames[0])
    if frames_count == 1 and header_bytes == 0:
        return []
    if 0 < header_bytes <= lane.header_bytes_max and frames_count <= 1 + BUFFERS_COUNT_MAX:
        return [
            Delivery(peer, frames[0].bytes, [frame.buffer.toreadonly() for frame in frames[1:]])
        ]
    try:
        if header_bytes or frames_count != len(frames):
            raise RemoteProtocolError(
                f"a header of {header_bytes} bytes and {frames_count - 1} buffers came; 1 to "
                f"{lane.header_bytes_max} bytes and at most {BUFFERS_COUNT_MAX} buffers are allowed"
            )
        remaining = iter([frame.buffer.toreadonly() for frame in frames[2:]])
        return [
            Delivery(peer, header, list(islice(remaining, count)))
            for header, count in read_gathered(
                frames[1].bytes, frames_count - 2, lane.header_bytes_max
            )
        ]
    except RemoteProtocolError as exc:
        error = RemoteProtocolError(
            f"peer {peer!r}: {exc}. They were dropped; is the peer of the same version?"
        )
        return [PeerFailed(peer, error, final=False)]


def read_frames(socket: zmq.Socket[Any]) -> tuple[list[zmq.Frame], int] | None:
    """The next message: frames that may be looked at, and the count of all it had."""
    try:
        frame = socket.recv(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    frames = [frame]
    frames_count = 1
    while frame.more:
        frame = socket.recv(copy=False)
        frames_count += 1
        if len(frames) < _FRAMES_COUNT_MAX:
            frames.append(frame)
    return frames, frames_count
