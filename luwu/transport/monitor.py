"""Turn what a ZeroMQ socket does in silence into events.

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
caller opens a new socket in both cases (`DialStory.ended`). What an HTTP server answers reaches the
application as messages (libzmq takes it for ZMTP 1.0), so nothing is believed before PeerUp.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from itertools import count
from typing import Any

import zmq

from luwu.base.errors import AccessRefused, ConnectionFailed, LuwuError
from luwu.transport.interface import PeerDown, PeerFailed, PeerUp

LOST = "the connection ended: the process exited or was stopped, or the network broke"

_HANDSHAKE_FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
DIAL_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CONNECT_DELAYED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | _HANDSHAKE_FAILURES
)
LISTEN_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _HANDSHAKE_FAILURES

_numbers = count()


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


class _Phase(Enum):
    SEEKING = "no connection"
    GREETING = "connected, the handshake is not over"
    UP = "the handshake succeeded"
    ENDED = "a connection that was up is over"
    FAILED = "libzmq tries no more"


class DialStory:
    """Reads the monitor of one dialling socket, from its first attempt to the end of its first
    connection. Pure: events in, events out."""

    def __init__(self, peer: str, endpoint: str) -> None:
        self._peer = peer
        self._endpoint = endpoint
        self._phase = _Phase.SEEKING
        self._told: set[int] = set()

    @property
    def up(self) -> bool:
        """Messages that arrive now are the peer's."""
        return self._phase is _Phase.UP

    @property
    def ended(self) -> bool:
        """The connection was up and is over: read what is left, then open a new socket."""
        return self._phase is _Phase.ENDED

    @property
    def failed(self) -> bool:
        """Nothing more will happen on this socket."""
        return self._phase is _Phase.FAILED

    def lost(self) -> PeerDown:
        """The event to report when the last message has been read."""
        return PeerDown(self._peer, LOST)

    def tell(self, event: int) -> PeerUp | PeerFailed | None:
        """Report the meaning of a monitor event; a repeated failure is reported once."""
        if self._phase in (_Phase.ENDED, _Phase.FAILED):
            return None
        where = f"{self._endpoint} (peer {self._peer!r})"
        if event == zmq.EVENT_CONNECTED:
            self._phase = _Phase.GREETING
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._phase = _Phase.UP
            return PeerUp(self._peer)
        elif event == zmq.EVENT_CLOSED and self._phase is _Phase.SEEKING:
            return self._retried(
                event,
                f"nothing listens at {where} yet, retrying. "
                f"Start the other side, or check the address.",
            )
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self._phase = _Phase.SEEKING
            return self._retried(
                event,
                f"something answers at {where}, but it is not this run, retrying. "
                f"Is the connection file stale, or the port another service's?",
            )
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return self._final(
                f"{where} rejected our key and will keep rejecting it. Add the key there, or use "
                f"the right one, and start again."
            )
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            return self._final(
                f"{where} is encrypted, and this process connected without a key or with the wrong "
                f"public key. Give --join connect.json, or the whole URL that luwu up printed now."
            )
        elif event == zmq.EVENT_DISCONNECTED:
            if self._phase is _Phase.GREETING:
                return self._final(
                    f"something answers at {where} and speaks ZeroMQ, but it is not this run: it "
                    f"accepts no connections of LuWu. Check the address and start again."
                )
            if self._phase is _Phase.UP:
                self._phase = _Phase.ENDED
        return None

    def _retried(self, event: int, text: str) -> PeerFailed | None:
        if event in self._told:
            return None
        self._told.add(event)
        return PeerFailed(self._peer, ConnectionFailed(text), final=False)

    def _final(self, text: str) -> PeerFailed:
        self._phase = _Phase.FAILED
        return PeerFailed(self._peer, ConnectionFailed(text), final=True)


def stranger_error(event: int, place: str, endpoints: str) -> LuwuError:
    """The error of a connection that ended before it became a peer. `place`: where it came from,
    empty if it was gone before that could be asked."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        what = "with a key that is not allowed; add it with luwu keys add, if it should join"
    elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        what = "with different security settings; give its side the connection file of this run"
    else:
        what = (
            "and disconnected before it identified itself: another program, a port scan, or a "
            "process of this run that died at once"
        )
    who = f"something at {place}" if place else "something"
    return AccessRefused(f"{who} connected to {endpoints} {what}. It was rejected.")
