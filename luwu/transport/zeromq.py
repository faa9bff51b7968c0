"""Transport over ZeroMQ: tcp between hosts, ipc inside one.

    children ---> ROUTER + monitor --+
                                     +--> one poller --> receive()
    DEALER + monitor, a peer each ---+         ^
                                 wake(): eventfd

Everything happens inside the calls of one thread, except libzmq's own I/O threads. What a peer may
make us hold: one frame of PAYLOAD_BYTES_MAX at a time is read, but neither libzmq nor we bound what
arrives before `receive` is called; the credits that the protocol above grants do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import zmq

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import AccessRefused, ConfigError
from luwu.base.limits import CONTROL_HEADER_BYTES_MAX, CREDIT_BYTES_DEFAULT
from luwu.transport import endpoints
from luwu.transport.arrivals import ConnectionLimits
from luwu.transport.connections import Hub, Listener
from luwu.transport.curve import Security, ZapHandler, check_libzmq
from luwu.transport.dialled import Dialled
from luwu.transport.interface import (
    LISTENER,
    Buffer,
    PeerFailed,
    Received,
    SendHandle,
    Transport,
    anonymous_memory,
    checked_views,
    gone,
)
from luwu.transport.sockets import ZeroMqTiming

_TAKES_UNTIL_POLL = 32
"""Messages read in a row before monitors and `wake` are looked at."""


class ZeroMqTransport(Transport):
    """tcp:// and ipc:// links of one process role."""

    def __init__(
        self, *, credit_bytes: int = CREDIT_BYTES_DEFAULT, insecure: bool = False,
        security: Security | None = None, io_threads: int = 1, timing: ZeroMqTiming | None = None,
        limits: ConnectionLimits | None = None, header_bytes_max: int = CONTROL_HEADER_BYTES_MAX,
    ) -> None:  # fmt: skip
        """`security`: connections over tcp have keys; `insecure`: they may go off loopback without.

        `header_bytes_max` is larger only for a transport that wraps headers in its own. Raises
        ConfigError.
        """
        check_libzmq()
        if insecure and security is not None:
            raise ConfigError(
                "keys and --insecure contradict each other: with keys nothing insecure is let in; "
                "leave one of them out"
            )
        self.hub = Hub(
            credit_bytes=credit_bytes, header_bytes_max=header_bytes_max,
            timing=timing or ZeroMqTiming(), security=security,
            limits=limits or ConnectionLimits(), io_threads=io_threads,
        )  # fmt: skip
        self._zap_version = 0
        self._insecure = insecure
        self._listener: Listener | None = None
        self._dialled: dict[str, Dialled] = {}
        self._ipc: list[endpoints.IpcEndpoint] = []
        self._wake_lock = threading.Lock()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.hub.poller.register(self._wake_fd, zmq.POLLIN)
        self._woken = False
        self._takes_until_poll = _TAKES_UNTIL_POLL
        self._closed = False

    def listen(self, endpoint: str, *, advertise: str | None = None) -> str:
        """Accept peers; see `Transport.listen`. Off loopback only with keys, or `insecure`."""
        if endpoint == "ipc://auto":
            with endpoints.private_ipc_endpoint() as private:
                return self._bind(private)
        wanted = endpoints.parse(endpoint)
        if isinstance(wanted, endpoints.IpcEndpoint):
            endpoints.clear_stale_socket(wanted)
            return self._bind(wanted)
        own_key = None if self.hub.security is None else self.hub.security.public
        bound = endpoints.listening_endpoint(wanted, own_key=own_key)
        self._check_secure(bound, "listen")
        if advertise is not None:
            endpoints.advertised(advertise, bound)  # before anything is open
        address = endpoints.parse(self._bind(bound))
        assert isinstance(address, endpoints.TcpEndpoint)
        chosen = endpoints.TcpEndpoint(address.host, address.port, own_key)
        return str(chosen) if advertise is None else endpoints.advertised(advertise, chosen)

    def dial(self, peer: str, endpoint: str) -> None:
        if not peer or peer.startswith("p-") or peer in self._dialled:
            raise ValueError(f"cannot call a peer {peer!r}: empty, a listener's name, or taken")
        look = None
        if isinstance(endpoint, endpoints.MovableEndpoint):
            look = partial(self._look, endpoint)
        # Names go to libzmq, which looks them up again at each attempt: addresses move.
        self._dialled[peer] = Dialled(self.hub, peer, self._places(endpoint), look)

    def reserve(self, nbytes: int) -> memoryview:
        """Ordinary memory: ZeroMQ sends from any."""
        return anonymous_memory(nbytes)

    def send(self, peer: str, header: bytes, buffers: Sequence[Buffer] = ()) -> SendHandle:
        """Queue one message; see `Transport.send`. Buffers of 64 KiB or more are not copied."""
        views = checked_views(header, buffers, header_bytes_max=self.hub.header_bytes_max)
        lane = self.hub.lanes.get(peer)
        if lane is None:
            raise gone(peer)
        return lane.send(header, views)

    def gather(self) -> None:
        self.hub.gathering.is_on = True

    def flush(self) -> None:
        self.hub.gathering.flush()

    def credit(self, peer: str) -> int:
        lane = self.hub.lanes.get(peer)
        if lane is None:
            raise gone(peer)
        return lane.credit_bytes()

    def receive(self, timeout_ns: int | None) -> Received | None:
        until_ns = None if timeout_ns is None else SYSTEM_CLOCK.now_ns() + timeout_ns
        last_round = False
        while True:
            if self.hub.zap is not None:
                self._look_at_keys(self.hub.zap)
            if not self.hub.received:
                self._take_messages()
            if self.hub.received:
                return self.hub.received.popleft()
            if last_round:
                self._woken = False
                return None
            left_ns = None if until_ns is None else max(0, until_ns - SYSTEM_CLOCK.now_ns())
            wait_ms = None if left_ns is None else -(-left_ns // 1_000_000)
            self._poll(0 if self.hub.sides or self._woken else wait_ms)
            last_round = self._woken or left_ns == 0

    def wake(self) -> None:
        with self._wake_lock:
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Close everything; takes `linger_ms` at most."""
        with self._wake_lock:
            if self._closed:
                return
            self._closed = True
            self.hub.poller.unregister(self._wake_fd)
            os.close(self._wake_fd)
        self.hub.gathering.flush()
        for endpoint in self._ipc:
            endpoints.remove_socket(endpoint)  # libzmq leaves the file
        for dialled in self._dialled.values():
            dialled.close()
        if self._listener is not None:
            self._listener.close()
        if self.hub.zap is not None:
            self.hub.zap.close()
        self.hub.context.term()  # waits for libzmq's threads
        self.hub.lanes.clear()
        self.hub.received.clear()

    def waits_on(self) -> list[tuple[Any, int]]:
        """For a transport beside this one: what a blocked `receive` would poll."""
        return self.hub.poller.sockets

    def _bind(self, endpoint: endpoints.Endpoint) -> str:
        hub = self.hub
        if endpoint.key is not None and hub.zap is None:
            assert hub.security is not None
            hub.zap = ZapHandler(hub.context, hub.security, self.wake)  # before any socket
        if self._listener is None:
            self._listener = Listener(hub)
        try:
            bound = self._listener.bind(endpoint)
        except zmq.ZMQError as exc:
            raise endpoints.bind_error(endpoint, exc.errno or 0, exc.strerror) from exc
        if isinstance(endpoint, endpoints.IpcEndpoint):
            self._ipc.append(endpoint)
        return bound

    def _places(self, endpoint: str) -> tuple[endpoints.Endpoint, ...]:
        """The places of an endpoint to dial, checked. Raises ConfigError."""
        places = endpoints.parse_places(endpoint)
        for place in places:
            if isinstance(place, endpoints.TcpEndpoint):
                if place.is_wildcard or place.port == 0:
                    raise ConfigError(
                        f"{endpoint} cannot be dialled; give the address and port that it listens "
                        "at"
                    )
                self._check_secure(place, "dial")
        return places

    def _look(self, endpoint: endpoints.MovableEndpoint) -> tuple[endpoints.Endpoint, ...]:
        return self._places(endpoint.look())

    def _check_secure(self, endpoint: endpoints.TcpEndpoint, verb: str) -> None:
        endpoints.check_secure(
            endpoint, insecure=self._insecure, own_key=self.hub.security is not None, verb=verb
        )

    def _look_at_keys(self, zap: ZapHandler) -> None:
        """Report the refused, and end connections whose keys were taken back."""
        zap.check_alive()
        while zap.refused:
            error = AccessRefused(f"{zap.refused.popleft()}.")
            self.hub.received.append(PeerFailed(LISTENER, error, final=False))
        if zap.version != self._zap_version:
            self._zap_version = zap.version
            assert self._listener is not None
            self._listener.expel()

    def _take_messages(self) -> None:
        """Read from the sides in turn until there is something to return."""
        while self.hub.sides and not self.hub.received:
            self._takes_until_poll -= 1
            if self._takes_until_poll == 0:
                self._poll(0)
            side = self.hub.sides.popleft()
            if side.take() and side not in self.hub.sides:
                self.hub.sides.append(side)

    def _poll(self, timeout_ms: int | None) -> None:
        self._takes_until_poll = _TAKES_UNTIL_POLL
        if timeout_ms != 0:
            self.hub.gathering.flush()
        for socket, _ in self.hub.poller.poll(timeout_ms):
            if socket == self._wake_fd:
                os.eventfd_read(self._wake_fd)
                self._woken = True
            elif socket in self.hub.calls:  # an earlier call may have closed it
                self.hub.calls[socket]()
