"""The transport that an endpoint asks for."""

from __future__ import annotations

from luwu.transport.interface import Transport
from luwu.transport.shm import ShmTransport
from luwu.transport.zeromq import ZeroMqTransport

SHARED_SCHEME = "shm://"

_CREDIT_BYTES = 1 << 50
"""What is sent by reference is bounded by the arenas it lies in, not per peer."""


def open_transport(endpoint: str, *, arena_bytes: int = 0, insecure: bool = False) -> Transport:
    """A transport for an endpoint to listen at or to dial. Raises ConfigError.

    `arena_bytes`: shared memory for what is sent from here, where the endpoint is shm://.
    """
    if endpoint.startswith(SHARED_SCHEME):
        return ShmTransport(arena_bytes=arena_bytes, credit_bytes=_CREDIT_BYTES)
    return ZeroMqTransport(insecure=insecure)
