"""The transport that an endpoint asks for."""

from __future__ import annotations

import os
from typing import Final

from luwu.base.errors import ConfigError
from luwu.transport.arrivals import ConnectionLimits
from luwu.transport.curve import Security
from luwu.transport.interface import Transport
from luwu.transport.mapping import Access
from luwu.transport.mixed import SHARED_SCHEME, MixedTransport
from luwu.transport.shm import ShmTransport
from luwu.transport.zeromq import ZeroMqTransport

IO_THREADS_MAX: Final = 4
"""Four threads that only copy come to what most hosts' memory gives."""

EACH_CONNECTION_TIMES: Final = 4
"""A peer, its reader, and the last start of both, which we may not know to be over."""
STRANGERS_COUNT: Final = 256

_CREDIT_BYTES = 1 << 50
"""Credit of peers over shared memory: the arenas bound what is sent by reference."""


def open_transport(
    *endpoints: str,
    arena_bytes: int = 0,
    insecure: bool = False,
    security: Security | None = None,
    peers_count: int = 1,
    peers: Access = Access.PRIVATE,
) -> Transport:
    """A transport for endpoints to listen at or to dial. Raises ConfigError.

    `security`: the key that tcp connections must have; unused where there are none.
    `arena_bytes`: shared memory for what is sent from here, where the endpoint is shm://.
    `peers_count`: the largest number of peers. `peers`: how their shared memory is mapped.
    """
    shared_count = sum(endpoint.startswith(SHARED_SCHEME) for endpoint in endpoints)
    if shared_count == len(endpoints):
        return ShmTransport(arena_bytes=arena_bytes, credit_bytes=_CREDIT_BYTES, peers=peers)
    io_threads = io_threads_for(peers_count, len(os.sched_getaffinity(0)))
    connections_count = EACH_CONNECTION_TIMES * peers_count + STRANGERS_COUNT
    limits = ConnectionLimits(total=max(ConnectionLimits().total, connections_count))
    wired = ZeroMqTransport(
        insecure=insecure, security=security, limits=limits, io_threads=io_threads
    )
    if not shared_count:
        return wired
    try:
        shared = ShmTransport(arena_bytes=arena_bytes, credit_bytes=_CREDIT_BYTES, peers=peers)
    except ConfigError:
        wired.close()
        raise
    return MixedTransport(shared, wired)


def io_threads_for(connections_count: int, cores_count: int) -> int:
    """The number of I/O threads of libzmq for so many connections, on so many cores.

    A connection is served by one thread, so more threads than connections idle; and every thread
    that copies wants a core, while half of them are left to those who use the bytes.

    Source: the ZeroMQ guide, "one I/O thread for each gigabyte a second".
    """
    return max(1, min(connections_count, cores_count // 2, IO_THREADS_MAX))
