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
