"""ZeroMQ sockets as we want them: every option is set here, and nowhere else; what they tell of
their connections."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from socket import AF_UNIX, SO_SNDBUF, SOL_SOCKET
from socket import socket as Connection
from typing import Any, Final

import zmq
from zmq.utils import z85

from luwu.base.limits import PAYLOAD_BYTES_MAX, QUEUED_MESSAGES_MAX
from luwu.transport.curve import Security
from luwu.transport.endpoints import Endpoint

LOOPBACK_SEND_BYTES: Final = 512 * 1024
"""SO_SNDBUF of a connection within a host. Linux lets that of tcp grow to 4 MiB and more, so that
bytes are out of the core's cache before they are read; between hosts it must grow with the delay.
Exchange of 25 M parameters in bfloat16, 4 workers, 2 cores, medians of 40 steps in turn: 269 and
304 ms with the system's choice, 243 and 248 with this (128 KiB about the same, 1 MiB 263); without
a switch 205 and 222, and 185 and 189. A fixed SO_RCVBUF is slower. A Unix socket has 208 KiB, and
its two ends wake each other three times as often: 210 and 221 ms, with this 193 and 202; without a
switch 177, and 168. Where the system allows 208 KiB at most (net.core.wmem_max), nothing is gained.
"""

_AS_THE_SYSTEM_LIKES = -1


LOST: Final = "the connection ended: the process exited or was stopped, or the network broke"
HANDSHAKE_FAILURES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
"""Events of a monitor: a connection ended before it could carry messages."""
_numbers = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroMqTiming:
    """Timeouts of the sockets, in milliseconds, which is libzmq's unit."""

    reconnect_ms: int = 50
    """Pause before the second attempt to connect; over tcp it doubles up to the next value. A
    process that was started again is found so soon after it listens."""

    reconnect_ms_max: int = 200

    handshake_ms: int = 5_000
    """A connection that does not follow ZeroMQ's protocol is dropped after this."""

    heartbeat_ms: int = 1_000
    """Pause between heartbeats of tcp connections; ipc needs none, the system reports the end."""

    heartbeat_timeout_ms: int = 10_000
    """A tcp peer silent for this long is lost. Must exceed the time one buffer takes on the link,
    for only whole frames count as a sign of life: 64 MiB in 10 s need 54 Mbit/s."""

    linger_ms: int = 1_000
    """The time that `close` may take to send what is queued."""


def new_socket(context: zmq.Context[Any], kind: int, timing: ZeroMqTiming) -> zmq.Socket[Any]:
    """A socket that is bounded in time and size, and in nothing else."""
    socket: zmq.Socket[Any] = context.socket(kind)
    socket.linger = timing.linger_ms
    socket.maxmsgsize = PAYLOAD_BYTES_MAX  # of one frame; whoever exceeds it is disconnected
    socket.handshake_ivl = timing.handshake_ms
    # No marks on sending, which is bounded by our credits, nor on what comes from whom we dialled.
    socket.sndhwm = 0
    socket.rcvhwm = 0
    return socket


def new_router(context: zmq.Context[Any], timing: ZeroMqTiming) -> zmq.Socket[Any]:
    """A ROUTER whose peers' routing ids cannot be guessed.

    libzmq counts them from rand(), which is not seeded: they are the same in every process, and it
    aborts (tried with 4.3.5) when a peer has taken the name that the next one is to get.
    """
    ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4), "little"))
    socket = new_socket(context, zmq.ROUTER, timing)
    # A mark on receiving bounds what one connection makes us hold; it then waits at its sender. A
    # full queue stops libzmq's I/O thread for that connection, heartbeats with it: a receiver that
    # reads nothing for longer than their timeout then loses whoever has filled his (design note
    # 0033). Honest peers rarely have so much under way, and a lost connection costs a repetition.
    socket.rcvhwm = QUEUED_MESSAGES_MAX
    socket.router_mandatory = 1
    socket.router_handover = 0  # nobody takes over another's connection by its name
    return socket


def prepare_bind(
    socket: zmq.Socket[Any], endpoint: Endpoint, timing: ZeroMqTiming, security: Security | None
) -> None:
    """Set what depends on the endpoint that is bound next; one with a key shows it, and asks ZAP
    about every peer.

    It has no ZAP domain: with one, libzmq would ask about Unix sockets of the same ROUTER too.
    """
    _prepare(socket, endpoint, timing, security)
    socket.curve_server = endpoint.key is not None


def prepare_connect(
    socket: zmq.Socket[Any], endpoint: Endpoint, timing: ZeroMqTiming, security: Security | None
) -> None:
    """Set what depends on the endpoint that is connected; one with a key must prove to have it."""
    _prepare(socket, endpoint, timing, security)
    if endpoint.key is not None:
        socket.curve_serverkey = z85.encode(endpoint.key)


def _prepare(
    socket: zmq.Socket[Any], endpoint: Endpoint, timing: ZeroMqTiming, security: Security | None
) -> None:
    socket.ipv6 = endpoint.is_ipv6
    socket.sndbuf = LOOPBACK_SEND_BYTES if endpoint.is_loopback else _AS_THE_SYSTEM_LIKES
    socket.heartbeat_ivl = timing.heartbeat_ms if endpoint.is_tcp else 0
    socket.heartbeat_timeout = timing.heartbeat_timeout_ms
    socket.heartbeat_ttl = timing.heartbeat_timeout_ms
    if endpoint.key is not None:
        assert security is not None
        socket.curve_secretkey = z85.encode(security.own.secret.reveal())
        socket.curve_publickey = z85.encode(security.public)


def prepare_connected(fd: int) -> None:
    """Set what libzmq does not set of a Unix socket; `fd`: of a connection that was just made.

    By now it may be closed, or be another connection: then that one is set, which does no harm.
    """
    connection = copy_of(fd)
    if connection is None:
        return
    with connection, suppress(OSError):
        if connection.family == AF_UNIX:
            connection.setsockopt(SOL_SOCKET, SO_SNDBUF, LOOPBACK_SEND_BYTES)


def copy_of(fd: int) -> Connection | None:
    """The same connection under a number of our own; None if it is no socket (any more)."""
    try:
        copied = os.dup(fd)
    except OSError:
        return None
    try:
        return Connection(fileno=copied)
    except OSError:
        os.close(copied)
        return None


class SocketMonitor:
    """The event stream of one socket, readable without blocking."""

    def __init__(self, context: zmq.Context[Any], watched: zmq.Socket[Any], events: int) -> None:
        self._watched = watched
        address = f"inproc://monitor-{next(_numbers)}"
        watched.monitor(address, events)
        self.socket: zmq.Socket[Any] = context.socket(zmq.PAIR)
        # No mark: libzmq's I/O thread would stop at a full monitor, and all connections with it.
        self.socket.rcvhwm = 0
        self.socket.linger = 0
        self.socket.connect(address)

    def read(self) -> Iterator[tuple[int, int]]:
        """(event, value) of what happened since the last call; the value is often a descriptor."""
        while True:
            try:
                number_and_value, _endpoint = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            event, value = struct.unpack("=Hi", number_and_value)
            yield event, value

    def close(self) -> None:
        """Stop watching."""
        self._watched.disable_monitor()
        self.socket.close()
