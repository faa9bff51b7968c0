"""Notices between transports over shared memory: bytes in, bytes out. Pure.

Each message over ZeroMQ begins with a notice, and its first byte is the notice's kind:

    kind       then                                                   frames that follow
    GREETING   magic, token                                           none
    MET        magic                                                  none
    INLINE     header                                                 all buffers
    SHARED     sequence number, mask, one or two spans, header        the buffers that are no spans
    RELEASED   sequence numbers                                       none
    FORGOTTEN  places of arenas                                       none

A span says where a buffer lies: the arena, by its place among the arenas whose descriptors this
side has passed on this connection, the offset and the size. Bit i of the mask: buffer i is a span.
SHARED messages are numbered from 1 on each connection, each way; RELEASED names those whose spans
are needed no more. FORGOTTEN names arenas that no later message will name. Numbers have the byte
order of x86 and Arm, though both sides are on one machine.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from luwu.base.errors import RemoteProtocolError
from luwu.base.limits import CONTROL_HEADER_BYTES_MAX
from luwu.transport.interface import BUFFERS_COUNT_MAX

GREETING: Final = 0x47
MET: Final = 0x4D
INLINE: Final = 0x49
SHARED: Final = 0x53
RELEASED: Final = 0x52
FORGOTTEN: Final = 0x46

TOKEN_BYTES: Final = 16
PREFIX_BYTES_MAX: Final = 128
"""The most bytes of a notice beside the header in it."""

NUMBERS_COUNT_MAX: Final = 500
"""Numbers in one notice; 4,001 bytes, within the cap of a header."""

_MAGIC: Final = b"luwu-shm-1"
_INLINE_PREFIX: Final = bytes([INLINE])
_ONE: Final = struct.Struct("<BBQIQQ")
_TWO: Final = struct.Struct("<BBQIQQIQQ")
_MASK_AT: Final = 1


class Span(NamedTuple):
    """The place of a buffer: an arena, an offset, a length."""

    arena_index: int
    offset: int
    nbytes: int


class Shared(NamedTuple):
    """A SHARED notice, read."""

    sequence: int
    mask: int
    spans: list[Span]
    header: bytes


def greeting(token: bytes) -> bytes:
    """The first notice of a dialler; the same token went through the Unix socket."""
    return bytes([GREETING]) + _MAGIC + token


def greeted_token(notice: bytes, frames_count: int) -> bytes | None:
    """The token of a greeting; None if it is none."""
    token = notice[1 + len(_MAGIC) :]
    is_sound = notice == greeting(token) and len(token) == TOKEN_BYTES and not frames_count
    return token if is_sound else None


def met() -> bytes:
    """The listener's answer to a greeting."""
    return bytes([MET]) + _MAGIC


def inline(header: bytes) -> bytes:
    """A message whose buffers follow as frames."""
    return _INLINE_PREFIX + header


def shared(sequence: int, mask: int, spans: list[Span], header: bytes) -> bytes:
    """A message with spans, in the order of the buffers they are."""
    if len(spans) == 1:
        return _ONE.pack(SHARED, mask, sequence, *spans[0]) + header
    return _TWO.pack(SHARED, mask, sequence, *spans[0], *spans[1]) + header


def read_shared(notice: bytes, frames_count: int) -> Shared:
    """The parts of a message with spans. Raises RemoteProtocolError.

    What the spans say is not checked: that needs the arenas.
    """
    mask = notice[_MASK_AT] if len(notice) > _MASK_AT else 0
    spans_count = mask.bit_count()
    buffers_count = frames_count + spans_count
    form = _ONE if spans_count == 1 else _TWO
    if (
        not 1 <= spans_count <= BUFFERS_COUNT_MAX
        or buffers_count > BUFFERS_COUNT_MAX
        or mask >> buffers_count
        or len(notice) <= form.size
    ):
        raise RemoteProtocolError(
            f"a notice of {len(notice)} bytes with the mask {mask:#x} and {frames_count} frames "
            f"is not a message. It was dropped; is the peer of the same version?"
        )
    fields = form.unpack_from(notice)
    spans = [Span(*fields[3:6])]
    if spans_count > 1:
        spans.append(Span(*fields[6:9]))
    return Shared(fields[2], mask, spans, checked_header(notice[form.size :]))


def numbers(kind: int, values: Sequence[int]) -> bytes:
    """A RELEASED or FORGOTTEN notice; at most `NUMBERS_COUNT_MAX` values."""
    return struct.pack(f"<B{len(values)}Q", kind, *values)


def read_numbers(notice: bytes, frames_count: int) -> tuple[int, ...]:
    """The numbers in RELEASED or FORGOTTEN. Raises RemoteProtocolError."""
    count, rest = divmod(len(notice) - 1, 8)
    if rest or not 1 <= count <= NUMBERS_COUNT_MAX or frames_count:
        raise RemoteProtocolError(
            f"a notice of {len(notice)} bytes and {frames_count} frames releases nothing that can "
            f"be read. It was dropped; is the peer of the same version?"
        )
    return struct.unpack_from(f"<{count}Q", notice, 1)


def unknown(kind: int) -> RemoteProtocolError:
    """The error of a notice that means nothing to a peer that is up."""
    return RemoteProtocolError(
        f"a notice of kind {kind:#x} has no meaning here. It was dropped; is the peer of the same "
        f"version?"
    )


def checked_header(header: bytes) -> bytes:
    """The header in a notice. Raises RemoteProtocolError."""
    if not 0 < len(header) <= CONTROL_HEADER_BYTES_MAX:
        raise RemoteProtocolError(
            f"a header of {len(header)} bytes; 1 to {CONTROL_HEADER_BYTES_MAX} are allowed. "
            f"The message was dropped; is the peer of the same version?"
        )
    return header
