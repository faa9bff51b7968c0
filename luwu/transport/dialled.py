"""One peer that we dial over ZeroMQ: a DEALER for each connection, one after the other.

A peer may have several places, and others later (`MovableEndpoint`). A new connection is sought
where the last one was; if an attempt fails, and the next one too where both failed at once, at the
next place. Wherever the peer goes, its public key stays the same: who changes a name or a file
cannot put another process in its place.

`zmq_connect` never fails, a wrong service looks like a dead one, and after some failures libzmq
stops trying without a word. A socket's monitor tells; measured with libzmq 4.3.5, on the dialling
side:

    what happens                     monitor events                                      tried again
    all is well                      CONNECTED, HANDSHAKE_SUCCEEDED                      -
    no one listens                   CLOSED, CONNECT_RETRIED, repeating                  yes
    not ZeroMQ (HTTP), silent, or    CONNECTED, HANDSHAKE_FAILED_NO_DETAIL,              yes
      a wrong server key             DISCONNECTED
    our key is not allowed           CONNECTED, HANDSHAKE_FAILED_AUTH, DISCONNECTED      no
    encrypted, and we have no key    CONNECTED, HANDSHAKE_FAILED_PROTOCOL, DISCONNECTED  no
    ZeroMQ, but no ROUTER            CONNECTED, DISCONNECTED                             no
    the other side ends              DISCONNECTED, CONNECT_RETRIED                       yes
    it breaks ZMTP (frame too big)   DISCONNECTED                                        no

Nothing that arrives in time distinguishes the last two, so after a connection that worked the
caller opens a new socket in both cases (`Phase.ENDED`). What an HTTP server answers reaches the
application as messages (libzmq takes it for ZMTP 1.0), so nothing is believed before PeerUp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import zmq

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, ConnectionFailed, LuwuError
from luwu.transport.connections import Hub
from luwu.transport.endpoints import Endpoint, check_known
from luwu.transport.interface import PeerDown, PeerFailed, PeerUp
from luwu.transport.lanes import Lane, Way, read_frames, received_of
from luwu.transport.sockets import (
    HANDSHAKE_FAILURES,
    LOST,
    SocketMonitor,
    new_socket,
    prepare_connect,
    prepare_connected,
)

_EVENTS: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CONNECT_DELAYED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | HANDSHAKE_FAILURES
)


class Phase(Enum):
    """The state of one dialling socket."""

    SEEKING = "no connection"
    GREETING = "connected, the handshake is not over"
    UP = "the handshake succeeded: messages are the peer's"
    ENDED = "a connection that was up is over: read what is left, then open a new socket"
    FAILED = "libzmq tries no more"


_RETRIED: Final[Mapping[int, str]] = {
    zmq.EVENT_CLOSED: (
        "nothing listens at {} yet, retrying. Start the other side, or check the address."
    ),
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: (
        "something answers at {}, but it is not this run, retrying. Is the connection file stale, "
        "or the port another service's?"
    ),
}
"""Failures after which libzmq goes on."""

_FINAL: Final[Mapping[int, str]] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: (
        "{} rejected our key and will keep rejecting it. Add the key there, or use the right one, "
        "and start again."
    ),
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: (
        "{} is encrypted, and this process connected without a key or with the wrong public key. "
        "Give --join connect.json, or the whole URL that luwu up printed now."
    ),
    zmq.EVENT_DISCONNECTED: (
        "something answers at {} and speaks ZeroMQ, but it is not this run: it accepts no "
        "connections of LuWu. Check the address and start again."
    ),
}
"""Failures that will not mend."""


class Dialled:
    """Dials until it is closed."""

    def __init__(
        self, hub: Hub, peer: str, places: tuple[Endpoint, ...],
        look: Callable[[], tuple[Endpoint, ...]] | None,
    ) -> None:  # fmt: skip
        """`look`: looks its places up again; None: they are always the same. Raises
        ConnectionFailed if none has a known host."""
        self._hub = hub
        self._peer = peer
        self._places, self._look = places, look
        self._trouble = ""
        """Why its places could not be looked up, as reported last."""
        self._look_up()
        check_known(self._places)
        self._endpoint = self._places[0]
        self._open()

    def take(self) -> bool:
        """Read one message into `Hub.received`; False if there was none."""
        if self._is_closed:
            return False
        message = read_frames(self._socket)
        if message is None:
            if self._phase is Phase.ENDED:
                self._replace()
            return False
        if self._lane is None:
            self._read_monitor()  # the handshake is in the monitor before the first message
        if self._lane is not None:  # else it is not ZeroMQ that speaks; the monitor reports it
            self._hub.received += received_of(self._lane, *message)
        return True

    def close(self) -> None:
        """Close the socket; libzmq sends what is queued, for the linger time at most."""
        if not self._is_closed:
            self._close_socket(sends_on=self._phase is Phase.UP)

    def _look_up(self) -> None:
        """Look up the places of the peer; if that cannot be done, they are those known."""
        if self._look is None:
            return
        try:
            places = self._look()
            if {place.key for place in places} != {place.key for place in self._places}:
                raise ConfigError(
                    f"{self._peer!r} is now at {places[0]}, with another public key than at "
                    f"{self._places[0]}, and is not followed: start it with the secret file that "
                    "it had, or restart this process"
                )
        except LuwuError as exc:
            if str(exc) != self._trouble:
                self._trouble = str(exc)
                failed = PeerFailed(self._peer, ConnectionFailed(self._trouble), final=False)
                self._hub.received.append(failed)
            return
        self._places, self._trouble = places, ""

    def _move(self, step: int) -> bool:
        """Go to the place so many after the present one; False if that is the same."""
        before, places = self._endpoint, self._places
        at = places.index(before) + step if before in places else 0
        self._endpoint = places[at % len(places)]
        return self._endpoint != before

    def _open(self) -> None:
        timing = self._hub.timing
        self._phase = Phase.SEEKING
        self._reported: set[int] = set()
        self._lane: Lane | None = None
        self._is_closed = self._is_pausing = False
        self._opened_ns, self._failures_count = SYSTEM_CLOCK.now_ns(), 0
        self._socket = new_socket(self._hub.context, zmq.DEALER, timing)
        self._socket.probe_router = 1
        self._socket.reconnect_ivl = timing.reconnect_ms
        self._socket.reconnect_ivl_max = timing.reconnect_ms_max if self._endpoint.is_tcp else 0
        self._socket.connect_timeout = timing.handshake_ms
        prepare_connect(self._socket, self._endpoint, timing, self._hub.security)
        self._monitor = SocketMonitor(self._hub.context, self._socket, _EVENTS)
        self._hub.watch(self._socket, lambda: self._hub.readable(self))
        self._hub.watch(self._monitor.socket, self._read_monitor)
        self._socket.connect(self._endpoint.address)

    def _read_monitor(self) -> None:
        for event, value in self._monitor.read():
            if event == zmq.EVENT_CONNECTED:
                prepare_connected(value)
            if event in (zmq.EVENT_CONNECT_DELAYED, zmq.EVENT_CONNECT_RETRIED, zmq.EVENT_CONNECTED):
                self._is_pausing = event == zmq.EVENT_CONNECT_RETRIED
                self._failures_count += self._is_pausing
            meaning = self._meaning(event)
            if isinstance(meaning, PeerUp):
                self._lane = self._hub.attach(self._peer, Way(self._socket))
            if meaning is not None:
                self._hub.received.append(meaning)
        if self._phase is Phase.ENDED:
            assert self._lane is not None
            self._hub.detach(self._lane)  # nothing more can be sent, messages may still be read
            self._hub.readable(self)
        elif self._phase is Phase.FAILED:
            self._close_socket()
        elif self._is_pausing:
            self._is_pausing = False
            self._seek_elsewhere()

    def _meaning(self, event: int) -> PeerUp | PeerFailed | None:
        """What an event of the monitor means, up to the end of the socket's first connection; a
        repeated failure is reported once."""
        if self._phase in (Phase.ENDED, Phase.FAILED):
            return None
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._phase = Phase.UP
            return PeerUp(self._peer)
        if event == zmq.EVENT_CONNECTED:
            self._phase = Phase.GREETING
        elif event == zmq.EVENT_DISCONNECTED and self._phase is Phase.UP:
            self._phase = Phase.ENDED
        elif event in _FINAL and (event != zmq.EVENT_DISCONNECTED or self._phase is Phase.GREETING):
            self._phase = Phase.FAILED
            return self._failed(_FINAL[event])
        elif event in _RETRIED and (event != zmq.EVENT_CLOSED or self._phase is Phase.SEEKING):
            self._phase = Phase.SEEKING
            if event not in self._reported:
                self._reported.add(event)
                return self._failed(_RETRIED[event])
        return None

    def _failed(self, text: str) -> PeerFailed:
        error = ConnectionFailed(text.format(f"{self._endpoint} (peer {self._peer!r})"))
        return PeerFailed(self._peer, error, final=self._phase is Phase.FAILED)

    def _seek_elsewhere(self) -> None:
        """An attempt has failed, and libzmq pauses before the next one at this place."""
        lasted_ns = SYSTEM_CLOCK.now_ns() - self._opened_ns
        if self._failures_count == 1 and lasted_ns < self._hub.timing.reconnect_ms_max * 1_000_000:
            return
        self._look_up()
        if self._move(1):
            self._close_socket()
            self._open()

    def _replace(self) -> None:
        """The last message was read: say so, and seek the peer again with a new socket."""
        self._hub.received.append(PeerDown(self._peer, LOST))
        self._close_socket()
        self._look_up()
        self._move(0)
        self._open()

    def _close_socket(self, *, sends_on: bool = False) -> None:
        self._is_closed = True
        if not sends_on:
            self._socket.linger = 0  # nobody to send to
        self._hub.unwatch(self._socket)
        self._hub.unwatch(self._monitor.socket)
        self._monitor.close()
        self._socket.close()
