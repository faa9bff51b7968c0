"""One peer that we dial over ZeroMQ: a DEALER for each connection, one after the other."""

from __future__ import annotations

import zmq

from luwu.transport.connections import Hub
from luwu.transport.endpoints import Endpoint
from luwu.transport.interface import PeerUp
from luwu.transport.lanes import Lane, Way, received_of
from luwu.transport.monitor import DIAL_EVENTS, DialStory, SocketMonitor
from luwu.transport.sockets import new_socket, prepare_connect, read_frames


class Dialled:
    """Dials until it is stopped. With a greeting it serves one connection, then waits for
    `restart` with another one."""

    def __init__(self, hub: Hub, peer: str, endpoint: Endpoint, *, greeting: bytes) -> None:
        self._hub = hub
        self._peer = peer
        self._endpoint = endpoint
        self._greeting = greeting
        self._open()

    def take(self) -> bool:
        """Read one message into `Hub.received`; False if there was none."""
        if self._is_closed:
            return False
        message = read_frames(self._socket)
        if message is None:
            if self._story.ended:
                self._replace()
            return False
        if self._lane is None:
            self._read_monitor()  # the handshake is in the monitor before the first message
        if self._lane is not None:  # else it is not ZeroMQ that speaks; the monitor reports it
            self._hub.received += received_of(self._lane, *message)
        return True

    def close(self) -> None:
        """Close the socket; libzmq sends what is queued, for the linger time at most."""
        if self._is_closed:
            return
        if not self._story.up:
            self._socket.linger = 0  # nobody to send to
        self._close_socket()

    def stop(self) -> None:
        """Close the socket without sending what is queued, and without a PeerDown."""
        if self._is_closed:
            return
        if self._story.up:
            assert self._lane is not None
            self._hub.detach(self._lane)
        self._socket.linger = 0
        self._close_socket()

    def restart(self, greeting: bytes) -> None:
        """Dial again after `stop`."""
        self._greeting = greeting
        self._open()

    def _open(self) -> None:
        timing = self._hub.timing
        self._story = DialStory(self._peer, str(self._endpoint))
        self._lane: Lane | None = None
        self._is_closed = False
        self._socket = new_socket(self._hub.context, zmq.DEALER, timing)
        self._socket.probe_router = 0 if self._greeting else 1
        self._socket.reconnect_ivl = timing.reconnect_ms
        self._socket.reconnect_ivl_max = timing.reconnect_ms_max
        self._socket.connect_timeout = timing.handshake_ms
        prepare_connect(self._socket, self._endpoint, timing, self._hub.security)
        self._monitor = SocketMonitor(self._hub.context, self._socket, DIAL_EVENTS)
        self._hub.watch(self._socket, lambda: self._hub.readable(self))
        self._hub.watch(self._monitor.socket, self._read_monitor)
        self._socket.connect(self._endpoint.address)
        if self._greeting:
            self._socket.send(self._greeting, zmq.NOBLOCK)

    def _read_monitor(self) -> None:
        for event, _value in self._monitor.read():
            told = self._story.tell(event)
            if isinstance(told, PeerUp):
                hub = self._hub
                self._lane = Lane(
                    self._peer,
                    (Way(self._socket),),
                    hub.credit_bytes,
                    hub.header_bytes_max,
                    hub.gathering,
                )
                self._hub.attach(self._lane)
            if told is not None:
                self._hub.received.append(told)
        if self._story.ended:
            assert self._lane is not None
            self._hub.detach(self._lane)  # nothing more can be sent, messages may still be read
            self._hub.readable(self)
        elif self._story.failed:
            self._socket.linger = 0
            self._close_socket()

    def _replace(self) -> None:
        """The last message was read: say so, and seek the peer again with a new socket."""
        self._hub.received.append(self._story.lost())
        self._socket.linger = 0
        self._close_socket()
        if not self._greeting:
            self._open()

    def _close_socket(self) -> None:
        self._is_closed = True
        self._hub.unwatch(self._socket)
        self._hub.unwatch(self._monitor.socket)
        self._monitor.close()
        self._socket.close()
