"""Messages to one peer that leave together, as one multipart.

    alone      header, its buffers
    gathered   an empty frame; (bytes, count of buffers) of each header and the headers, one after
               the other; the buffers of all

A multipart costs a lock, a wake of libzmq's thread and a few calls at each end, however many
messages are in it. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from luwu.base.errors import RemoteProtocolError
from luwu.transport.interface import BUFFERS_COUNT_MAX

GATHERED_COUNT_MAX: Final = 64
"""Messages in one multipart."""

_PREFIX: Final = struct.Struct("<HB")


def gathered(headers: Sequence[bytes], buffers_counts: Sequence[int]) -> bytes:
    """The second frame of a multipart of several messages."""
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
    at = 0
    while len(frame) - at >= _PREFIX.size and len(found) < GATHERED_COUNT_MAX:
        header_bytes, count = _PREFIX.unpack_from(frame, at)
        at += _PREFIX.size + header_bytes
        if not 0 < header_bytes <= header_bytes_max or count > BUFFERS_COUNT_MAX:
            break
        buffers_count -= count
        found.append((frame[at - header_bytes : at], count))
    if at != len(frame) or buffers_count:
        raise RemoteProtocolError(
            f"{len(frame)} bytes and {buffers_count} more frames than they announce are not "
            f"messages that were sent together"
        )
    return found
