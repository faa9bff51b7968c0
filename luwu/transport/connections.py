"""The ROUTER that peers find; the DEALER for each peer we dial is in `dialled`.

Each dialling socket is used for one connection. libzmq would reconnect it automatically, and does
in the moments before we notice the loss; but then messages of two connections would come out of one
socket. So a DEALER says an empty message first (ZMQ_PROBE_ROUTER), once for each socket, and a
ROUTER admits no connection that begins otherwise.

A ROUTER knows its peers by routing ids, the monitor knows connections by file descriptors, and
descriptors are used again. They are matched at the empty message: its descriptor is read from the
message, and an empty answer, sent with ROUTER_MANDATORY, finds out whether that connection still
lives or the descriptor is already another one's. libzmq may take a connection that just ended for a
living one, for its end goes back and forth between two threads. So of two connections with one
descriptor the later one lives; routing ids are counted, in the order of the handshakes. With
several I/O threads a connection may speak, and end, before the monitor tells that it was accepted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import zmq

from luwu.base.errors import AccessRefused, LuwuError, RemoteProtocolError
from luwu.base.keys import KEY_HEX_CHARS, Identity
from luwu.transport.arrivals import Arrivals, Arrived, ConnectionLimits
from luwu.transport.curve import Security, ZapHandler
from luwu.transport.endpoints import Endpoint, TcpEndpoint
from luwu.transport.interface import LISTENER, PeerDown, PeerFailed, PeerUp, Received
from luwu.transport.lanes import Gathering, Lane, Way, read_frames, received_of
from luwu.transport.sockets import (
    HANDSHAKE_FAILURES,
    LOST,
    SocketMonitor,
    ZeroMqTiming,
    new_router,
    prepare_bind,
    prepare_connected,
)

_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILURES
_PASSED_OVER_COUNT = 64
"""A turn may be skipped when another connection ends (measured), hence not 2."""

_OWN_ROUTING_ID_BYTES = 5  # a zero and a number: what libzmq gives to those who bring no name


class Side(Protocol):
    """A socket that gives messages."""

    def take(self) -> bool:
        """Read one message, if there is one, into `Hub.received`; False if there was none."""


class Hub:
    """What the connections of one transport share."""

    def __init__(
        self, *, credit_bytes: int, header_bytes_max: int, timing: ZeroMqTiming,
        security: Security | None, limits: ConnectionLimits, io_threads: int,
    ) -> None:  # fmt: skip
        self.credit_bytes, self.header_bytes_max = credit_bytes, header_bytes_max
        self.timing, self.security = timing, security
        self.zap: ZapHandler | None = None
        """Says whose keys they are, where we listen."""
        self.arrivals = Arrivals(limits)
        self.context: zmq.Context[Any] = zmq.Context(io_threads)
        self.gathering = Gathering()
        self.lanes: dict[str, Lane] = {}
        """The ways to peers, by name."""
        self.received: deque[Received] = deque()
        self.sides: deque[Side] = deque()
        """Those that may have messages: to be read until there are none."""
        self.poller = zmq.Poller()
        self.calls: dict[Any, Callable[[], None]] = {}

    def watch(self, socket: zmq.Socket[Any], call: Callable[[], None]) -> None:
        """Call `call` when the socket has something."""
        self.poller.register(socket, zmq.POLLIN)
        self.calls[socket] = call

    def unwatch(self, socket: zmq.Socket[Any]) -> None:
        """Undo `watch`."""
        self.poller.unregister(socket)
        del self.calls[socket]

    def readable(self, side: Side) -> None:
        """The side may have messages."""
        if side not in self.sides:
            self.sides.append(side)

    def attach(self, peer: str, way: Way) -> Lane:
        """Messages to `peer` go this way from now on."""
        lane = Lane(peer, way, self.credit_bytes, self.header_bytes_max, self.gathering)
        self.lanes[peer] = lane
        return lane

    def detach(self, lane: Lane) -> None:
        """The peer is gone."""
        if self.lanes.get(lane.peer) is lane:
            del self.lanes[lane.peer]


@dataclass(eq=False, slots=True)
class _Route:
    """One connection that a ROUTER admitted, or ignores (`lane` None)."""

    routing_id: bytes
    lane: Lane | None
    fd: int = -1
    arrived: Arrived | None = None
    """Origin of the connection, by which it can be ended."""
    key: bytes = b""
    """Public key of the peer, if it has one."""
    others_heard: Counter[bytes] = field(default_factory=Counter)
    """Messages of others since the connection ended and its last message was read."""


@dataclass(frozen=True, slots=True)
class _UnmetEnd:
    """A connection that ended and was not met (yet)."""

    fd: int
    fault: int
    """The monitor's event that tells of a failed handshake; 0: there was none."""
    place: str
    """Origin of the connection, if known."""


class Listener:
    """The ROUTER of a transport, with all endpoints it listens at."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._endpoints: list[str] = []
        self._socket = new_router(hub.context, hub.timing)
        self._monitor = SocketMonitor(hub.context, self._socket, _EVENTS)
        self._routes: dict[bytes, _Route] = {}
        self._ending: list[_Route] = []
        self._by_fd: dict[int, _Route | None] = {}
        self._early: dict[int, _Route] = {}  # met before the monitor told that they were accepted
        self._ended_early: set[int] = set()  # over before the monitor told that
        self._handshake_fault = 0
        self._unmet_ends: list[_UnmetEnd] = []
        hub.watch(self._socket, lambda: hub.readable(self))
        hub.watch(self._monitor.socket, self._read_monitor)

    def bind(self, endpoint: Endpoint) -> str:
        """Listen at one more endpoint; returns it with the port chosen. Raises zmq.ZMQError."""
        prepare_bind(self._socket, endpoint, self._hub.timing, self._hub.security)
        self._socket.bind(endpoint.address)
        bound = str(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))
        if isinstance(endpoint, TcpEndpoint):
            self._hub.arrivals.listens_at(int(bound.rpartition(":")[2]))
        self._endpoints.append(bound)
        return bound

    def expel(self) -> None:
        """End the connections of those who may not be here any more."""
        hub = self._hub
        assert hub.zap is not None
        for route in self._routes.values():
            if route.lane is None or not route.key or hub.zap.identity_of(route.key) is not None:
                continue
            if not hub.arrivals.end(route.fd, route.arrived):
                # It is over, or its descriptor is not what we met: hear it no more.
                hub.detach(route.lane)
                hub.received.append(PeerDown(route.lane.peer, LOST))
                route.lane = None

    def take(self) -> bool:
        """Read one message into `Hub.received`; False if there was none."""
        message = read_frames(self._socket)
        if message is None:
            for route in tuple(self._ending):
                self._end(route)
            for end in self._unmet_ends:
                if self._hub.zap is not None and end.fault == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    continue  # the handler tells of it, and why
                error = _stranger_error(end.fault, end.place, ", ".join(self._endpoints))
                self._hub.received.append(PeerFailed(LISTENER, error, final=False))
            self._unmet_ends.clear()
            patience_ns = 2 * self._hub.timing.handshake_ms * 10**6
            for why in self._hub.arrivals.end_excess(patience_ns):
                self._report_flood(why)
            return False
        frames, frames_count = message
        routing_id = frames[0].bytes
        if routing_id not in self._routes:
            self._meet(routing_id, frames, frames_count)
            return True
        route = self._routes[routing_id]
        if self._ending:
            self._note_heard(route)
        if route.lane is not None:
            self._hub.received += received_of(route.lane, frames[1:], frames_count - 1)
        return True

    def close(self) -> None:
        """Close the socket; libzmq sends what is queued, for the linger time at most."""
        self._hub.unwatch(self._socket)
        self._hub.unwatch(self._monitor.socket)
        self._monitor.close()
        self._socket.close()

    def _meet(self, routing_id: bytes, frames: list[zmq.Frame], frames_count: int) -> None:
        """The first message of a connection: let it in, or not."""
        # Whatever ended before this connection began is in the monitor by now, so what `_by_fd`
        # says of the descriptor is about this connection or a later one.
        self._read_monitor()
        hub = self._hub
        fault = _stranger_fault(routing_id, frames, frames_count)
        fd = _descriptor(frames[-1])
        key, identity = self._key_of(frames[-1])
        is_unwelcome = fault is None
        fault = fault or self._unwelcome(fd, key, identity)
        peer = f"p-{routing_id[1:].hex()}"
        lane = None if fault is not None else hub.attach(peer, Way(self._socket, routing_id))
        arrived = hub.arrivals.there(fd) if key else None
        route = self._routes[routing_id] = _Route(routing_id, lane, fd, arrived, key)
        over: _Route | None = route
        hub.arrivals.met(fd)
        if fd >= 0 and self._is_alive(routing_id):
            holder = self._by_fd.get(fd)
            if fd not in self._by_fd:
                if not any(end.fd == fd for end in self._unmet_ends):
                    self._early[fd], over = route, None
            elif holder is None or _is_later(routing_id, holder.routing_id):
                self._by_fd[fd], over = route, holder
        if over is not None:
            self._begin_end(over)
            for end in [end for end in self._unmet_ends if (end.fd, end.fault) == (fd, 0)][:1]:
                self._unmet_ends.remove(end)
        if lane is not None:
            hub.received.append(PeerUp(peer, identity))
        else:
            kind: type[LuwuError] = AccessRefused if is_unwelcome else RemoteProtocolError
            place = hub.arrivals.place_of(fd)
            error = kind(
                f"something{place and f' at {place}'} that connected to "
                f"{', '.join(self._endpoints)} {fault}. It is not of this run, and is not listened "
                f"to; stop it, or correct the address it uses."
            )
            hub.received.append(PeerFailed(LISTENER, error, final=False))
            if key:
                hub.arrivals.end(fd, arrived)

    def _key_of(self, frame: zmq.Frame) -> tuple[bytes, Identity | None]:
        """The public key of a connection, and whose it is; (b"", None) if it has none."""
        zap = self._hub.zap
        try:
            text = str(frame.get("User-Id")) if zap is not None else ""
        except zmq.ZMQError:  # a Unix socket, which has no keys
            return b"", None
        if zap is None or len(text) != KEY_HEX_CHARS:
            return b"", None
        key = bytes.fromhex(text)
        return key, zap.identity_of(key)

    def _unwelcome(self, fd: int, key: bytes, identity: Identity | None) -> str | None:
        """The reason to reject a connection that follows our protocol; None if it is admitted."""
        if self._hub.arrivals.is_foreign(fd):
            return "is a process of another user"
        if not key:
            # libzmq let it in without asking, which it does where it finds nobody to ask.
            is_open = self._hub.zap is None or self._hub.arrivals.is_unix(fd)
            return None if is_open else "has no key, and was accepted by mistake"
        if identity is None:
            return "has a key that was revoked while it connected"
        limit = self._hub.arrivals.limits.of_key
        if sum(route.key == key for route in self._routes.values()) >= limit:
            return f"is one more connection with the key of {identity.name!r}; {limit} may be open"
        return None

    def _is_alive(self, routing_id: bytes) -> bool:
        # A send looks at most once a millisecond for connections that ended, this does each time.
        self._socket.getsockopt(zmq.EVENTS)
        try:
            self._socket.send_multipart([routing_id, b""], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def _read_monitor(self) -> None:
        for event, value in self._monitor.read():
            if event == zmq.EVENT_ACCEPTED:
                if value in self._ended_early:
                    self._ended_early.remove(value)
                else:
                    self._by_fd[value] = self._early.pop(value, None)
                self._note_arrival(value)
            elif event == zmq.EVENT_DISCONNECTED:
                place = self._hub.arrivals.place_of(value)
                self._hub.arrivals.ended(value)
                if value in self._by_fd:
                    route = self._by_fd.pop(value)
                else:
                    self._ended_early.add(value)
                    route = self._early.pop(value, None)
                if route is not None:
                    self._begin_end(route)
                else:
                    self._unmet_ends.append(_UnmetEnd(value, self._handshake_fault, place))
                    self._hub.readable(self)
                self._handshake_fault = 0
            else:
                self._handshake_fault = event  # the end of its connection follows

    def _note_arrival(self, fd: int) -> None:
        """A connection was accepted, and may be one too many."""
        prepare_connected(fd)
        why = self._hub.arrivals.came(fd)
        if self._by_fd.get(fd) is not None:
            self._hub.arrivals.met(fd)  # it spoke before the monitor told of it
        if why:
            self._report_flood(why)
        self._hub.readable(self)

    def _report_flood(self, why: str) -> None:
        error = AccessRefused(f"{why}. {', '.join(self._endpoints)} is being flooded.")
        self._hub.received.append(PeerFailed(LISTENER, error, final=False))

    def _begin_end(self, route: _Route) -> None:
        """The connection is over; its last messages may still be in the socket."""
        self._ending.append(route)
        self._hub.readable(self)

    def _note_heard(self, heard: _Route) -> None:
        """A ROUTER serves its connections in turn: one that is passed over has no more."""
        for route in tuple(self._ending):
            if route is heard:
                route.others_heard.clear()
                continue
            route.others_heard[heard.routing_id] += 1
            if route.others_heard[heard.routing_id] == _PASSED_OVER_COUNT:
                self._end(route)

    def _end(self, route: _Route) -> None:
        self._ending.remove(route)
        del self._routes[route.routing_id]
        if route.lane is not None:
            self._hub.detach(route.lane)
            self._hub.received.append(PeerDown(route.lane.peer, LOST))


def _stranger_error(event: int, place: str, endpoints: str) -> LuwuError:
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


def _stranger_fault(routing_id: bytes, frames: list[zmq.Frame], frames_count: int) -> str | None:
    """The reason why the sender of this first message is no peer; None if it is one."""
    if len(routing_id) != _OWN_ROUTING_ID_BYTES or routing_id[0] != 0:
        return "chose a name for itself, or does not speak ZeroMQ"
    if frames_count < 2 or _socket_type(frames[1]) != "DEALER":
        return "speaks an old ZeroMQ, or another socket's part"
    if frames_count != 2 or len(frames[1]):
        return "did not begin with an empty message (or repeats what a lost connection left over)"
    return None


def _is_later(routing_id: bytes, other: bytes) -> bool:
    """True if the first of two connections got its number later; numbers wrap around."""
    counts = [int.from_bytes(each[1:], "big") for each in (routing_id, other)]
    return 0 < (counts[0] - counts[1]) % 2**32 < 2**31


def _descriptor(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(zmq.MessageOption.SRCFD))
    except zmq.ZMQError:
        return -1


def _socket_type(frame: zmq.Frame) -> str:
    try:
        return str(frame.get("Socket-Type"))
    except zmq.ZMQError:  # ZMTP 1.0, or what looks like it, has no properties
        return ""
