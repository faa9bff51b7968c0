"""The transport that endpoints ask for; for shared memory and sockets at once, both in one.

    shm:// endpoints      a `ShmTransport`
    tcp:// and ipc://     a `ZeroMqTransport`
    both                  a `MixedTransport`: of a switch with workers here and a parent elsewhere

What comes to a `MixedTransport` from the peer that it dials over a socket, and so is weights for
all children, is copied once into shared memory; from there it is handed to each of them without a
copy. What comes by shared memory is sent over the socket from where it lies. It is for a process
whose loop is one thread, as a switch's is: buffers that another thread gives back are reported with
the next message.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import zmq

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError
from luwu.base.limits import ZERO_COPY_BYTES_MIN
from luwu.transport.arena import Access
from luwu.transport.arrivals import ConnectionLimits
from luwu.transport.curve import Security
from luwu.transport.interface import (
    LISTENER,
    Buffer,
    CreditExceeded,
    Delivery,
    Received,
    SendHandle,
    Transport,
)
from luwu.transport.shm import ShmTransport
from luwu.transport.zeromq import ZeroMqTransport

SHARED_SCHEME: Final = "shm://"
_MARK: Final = "00"
"""Ends the names of peers over shared memory: both transports name theirs by 8 digits."""


class MixedTransport(Transport):
    """See the module."""

    def __init__(self, shared: ShmTransport, wired: ZeroMqTransport) -> None:
        self._shared, self._wired = shared, wired
        self._dialled: dict[str, Transport] = {}
        self._wired_first = False
        self._is_woken = False

    def listen(self, endpoint: str, *, advertise: str | None = None) -> str:
        """Accept peers; may be called once for each kind of endpoint. See `Transport.listen`."""
        return self._of(endpoint).listen(endpoint, advertise=advertise)

    def dial(self, peer: str, endpoint: str) -> None:
        transport = self._of(endpoint)
        transport.dial(peer, endpoint)
        self._dialled[peer] = transport

    def reserve(self, nbytes: int) -> memoryview:
        """Shared memory, from which a socket sends as well; see `Transport.reserve`."""
        return self._shared.reserve(nbytes)

    def send(self, peer: str, header: bytes, buffers: Sequence[Buffer] = ()) -> SendHandle:
        transport, name = self._route(peer)
        return transport.send(name, header, buffers)

    def gather(self) -> None:
        self._shared.gather()
        self._wired.gather()

    def flush(self) -> None:
        self._shared.flush()
        self._wired.flush()

    def credit(self, peer: str) -> int:
        transport, name = self._route(peer)
        return transport.credit(name)

    def receive(self, timeout_ns: int | None) -> Received | None:
        until_ns = None if timeout_ns is None else SYSTEM_CLOCK.now_ns() + timeout_ns
        while True:
            self._wired_first = not self._wired_first  # neither starves the other
            for is_wired in (self._wired_first, not self._wired_first):
                heard = (self._wired if is_wired else self._shared).receive(0)
                if heard is not None:
                    return self._copied(heard) if is_wired else self._named(heard)
            if self._is_woken:
                self._is_woken = False
                return None
            left_ns = None if until_ns is None else max(0, until_ns - SYSTEM_CLOCK.now_ns())
            if left_ns == 0:
                return None
            self._wait(self._shared.wait_ns(left_ns))

    def wake(self) -> None:
        self._is_woken = True
        self._wired.wake()

    def close(self) -> None:
        try:
            self._wired.close()
        finally:
            self._shared.close()

    def _of(self, endpoint: str) -> Transport:
        return self._shared if endpoint.startswith(SHARED_SCHEME) else self._wired

    def _route(self, peer: str) -> tuple[Transport, str]:
        if peer in self._dialled:
            return self._dialled[peer], peer
        if len(peer) > len("p-01234567") and peer.endswith(_MARK):
            return self._shared, peer.removesuffix(_MARK)
        return self._wired, peer

    def _named(self, heard: Received) -> Received:
        """News of a peer over shared memory, under the name it has here."""
        if heard.peer in self._dialled or heard.peer == LISTENER:
            return heard
        if isinstance(heard, Delivery):
            heard.peer += _MARK
            return heard
        return replace(heard, peer=heard.peer + _MARK)

    def _copied(self, heard: Received) -> Received:
        """A delivery of the parent, copied into shared memory where there is room for it."""
        if not isinstance(heard, Delivery) or heard.peer not in self._dialled:
            return heard
        if sum(buffer.nbytes for buffer in heard.buffers) < ZERO_COPY_BYTES_MIN:
            return heard
        copies = []
        try:
            for buffer in heard.buffers:
                memory = self._shared.reserve(buffer.nbytes)
                memory[:] = buffer
                copies.append(memory.toreadonly())
        except CreditExceeded:
            return heard
        heard.release()
        return Delivery(heard.peer, heard.header, copies)

    def _wait(self, timeout_ns: int | None) -> None:
        self.flush()
        timeout_ms = -1 if timeout_ns is None else -(-timeout_ns // 1_000_000)
        zmq.zmq_poll([*self._shared.waits_on(), *self._wired.waits_on()], timeout_ms)


IO_THREADS_MAX: Final = 4
"""Four threads that only copy come to what most hosts' memory gives."""

EACH_CONNECTION_TIMES: Final = 4
"""A peer, its reader, and the last start of both, which we may not know to be over."""
STRANGERS_COUNT: Final = 256

_CREDIT_BYTES = 1 << 50
"""Credit of peers over shared memory: the arenas bound what is sent by reference."""


def open_transport(
    *endpoints: str, arena_bytes: int = 0, insecure: bool = False,
    security: Security | None = None, peers_count: int = 1, peers: Access = Access.PRIVATE,
) -> Transport:  # fmt: skip
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
