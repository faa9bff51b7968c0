"""Credit of one peer, in bytes: what may be queued to it. Pure; the transports keep the sums.

ZeroMQ's marks count messages, and a message here is anything from 50 bytes to 64 MiB.
"""

from __future__ import annotations

import mmap
from typing import Final

from luwu.base.errors import ConfigError
from luwu.transport.interface import CreditExceeded

HEADER_RESERVE_BYTES: Final = 1024 * 1024
"""Bytes that messages without buffers may queue beyond the credit: answers never wait for data."""


class CreditLedger:
    """The bytes that are queued to one peer, and their limit."""

    __slots__ = ("limit_bytes", "peer", "queued_bytes")

    def __init__(self, peer: str, limit_bytes: int) -> None:
        self.peer = peer
        self.limit_bytes = limit_bytes
        self.queued_bytes = 0

    @property
    def credit_bytes(self) -> int:
        """Bytes that may be queued now."""
        return max(0, self.limit_bytes - self.queued_bytes)

    def check(self, header_bytes: int, payload_bytes: int) -> None:
        """Raise CreditExceeded if a message of this size may not be queued now."""
        limit = self.limit_bytes if payload_bytes else self.limit_bytes + HEADER_RESERVE_BYTES
        if self.queued_bytes + header_bytes + payload_bytes > limit:
            raise exceeded(self.peer, header_bytes, payload_bytes, self.queued_bytes, limit)


def exceeded(
    peer: str, header_bytes: int, payload_bytes: int, queued_bytes: int, limit_bytes: int
) -> CreditExceeded:
    """The error of a message that is larger than the credit left."""
    return CreditExceeded(
        f"{header_bytes} + {payload_bytes} bytes for peer {peer!r}, which has {queued_bytes} bytes "
        f"queued of {limit_bytes}; ask credit() before sending, or raise credit_bytes"
    )


def check_limit(credit_bytes: int) -> int:
    """The limit itself. Raises ConfigError."""
    if credit_bytes <= 0:
        raise ConfigError(f"credit_bytes must be > 0, got {credit_bytes!r}")
    return credit_bytes


def anonymous_memory(nbytes: int) -> memoryview:
    """Private page-aligned memory of this process, exactly `nbytes` long."""
    if nbytes < 0:
        raise ValueError(f"cannot reserve {nbytes} bytes")
    if nbytes == 0:
        return memoryview(bytearray())  # an empty mapping does not exist
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(mapping)
