"""Transport inside one process: deques and conditions, for tests and debuggers.

An `InProcessNetwork` is the meeting place; endpoints are inproc://NAME. Buffers travel by
reference: the receiver sees the sender's memory, read-only. The sender must not write to it before
the handle is done, and it is done when the receiver has released the delivery (or has closed).

One lock guards a whole network, so its transports may live in different threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, ConnectionFailed
from luwu.base.limits import CREDIT_BYTES_DEFAULT
from luwu.transport.interface import (
    Buffer,
    Delivery,
    PeerDown,
    PeerFailed,
    PeerUp,
    Received,
    SendHandle,
    Transport,
    anonymous_memory,
    check_credit,
    checked_views,
    gone,
)

_LOST = "the other transport was closed"


class InProcessNetwork:
    """The network of one process, in which its transports find each other."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.listeners: dict[str, InProcessTransport] = {}
        self.seekers: list[_Seeker] = []
        self.numbers = count(1)

    def transport(self, *, credit_bytes: int = CREDIT_BYTES_DEFAULT) -> InProcessTransport:
        """A new transport of this network."""
        return InProcessTransport(self, credit_bytes=credit_bytes)


@dataclass(frozen=True, slots=True)
class _Seeker:
    """A dialled peer that is not connected."""

    transport: InProcessTransport
    peer: str
    endpoint: str


@dataclass(eq=False, slots=True)
class _End:
    """One transport's side of a connection."""

    owner: InProcessTransport
    peer: str
    seeker: _Seeker | None
    """The call that seeks the peer again; None on the listening side."""
    other: _End | None = None
    queued_bytes: int = 0


@dataclass(eq=False, slots=True)
class _Passed:
    """Handle of one message: done when the receiver gave it back."""

    end: _End
    """Where it was sent."""
    nbytes: int
    done: bool = False

    def finish(self) -> None:
        """The receiver needs the buffers no more."""
        with self.end.owner._network.lock:
            self.finish_locked()
            self.end.owner._note_return()

    def finish_locked(self) -> None:
        """`finish` with the lock held."""
        if not self.done:
            self.done = True
            self.end.queued_bytes -= self.nbytes


class InProcessTransport(Transport):
    """inproc:// links of one role."""

    def __init__(
        self, network: InProcessNetwork, *, credit_bytes: int = CREDIT_BYTES_DEFAULT
    ) -> None:
        self._network = network
        self._credit_bytes = credit_bytes
        self._changed = threading.Condition(network.lock)
        self._inbox: deque[tuple[Received, _Passed | None]] = deque()
        self._ends: dict[str, _End] = {}
        self._dialled: set[str] = set()
        self._endpoints: list[str] = []
        self._woken = False
        self._has_returns = False
        self._closed = False

    def listen(self, endpoint: str, *, advertise: str | None = None) -> str:
        """Accept peers at inproc://NAME, or inproc://auto; see `Transport.listen`."""
        _check_endpoint(endpoint)
        network = self._network
        with network.lock:
            if endpoint == "inproc://auto":
                endpoint = f"inproc://auto-{next(network.numbers)}"
            if endpoint in network.listeners:
                raise ConfigError(f"{endpoint} is in use in this process; choose another name")
            network.listeners[endpoint] = self
            self._endpoints.append(endpoint)
            for seeker in [seeker for seeker in network.seekers if seeker.endpoint == endpoint]:
                network.seekers.remove(seeker)
                self._connect(seeker)
        return endpoint if advertise is None else advertise

    def dial(self, peer: str, endpoint: str) -> None:
        _check_endpoint(endpoint)
        with self._network.lock:
            if not peer or peer.startswith("p-") or peer in self._dialled:
                raise ValueError(f"cannot call a peer {peer!r}: empty, a listener's name, or taken")
            self._dialled.add(peer)
            self._seek(_Seeker(self, peer, endpoint))

    def reserve(self, nbytes: int) -> memoryview:
        """Ordinary memory."""
        return anonymous_memory(nbytes)

    def send(self, peer: str, header: bytes, buffers: Sequence[Buffer] = ()) -> SendHandle:
        """Hand one message over; see `Transport.send`. No buffer is copied."""
        views = [view.toreadonly() for view in checked_views(header, buffers)]
        payload_bytes = sum(view.nbytes for view in views)
        with self._network.lock:
            end = self._end(peer)
            check_credit(peer, len(header), payload_bytes, end.queued_bytes, self._credit_bytes)
            passed = _Passed(end, len(header) + payload_bytes)
            end.queued_bytes += passed.nbytes
            other = end.other
            assert other is not None
            delivery = Delivery(
                other.peer, bytes(header), views, passed.finish, is_shared=bool(views)
            )
            other.owner._put(delivery, passed)
        return passed

    def credit(self, peer: str) -> int:
        with self._network.lock:
            return max(0, self._credit_bytes - self._end(peer).queued_bytes)

    def receive(self, timeout_ns: int | None) -> Received | None:
        until_ns = None if timeout_ns is None else SYSTEM_CLOCK.now_ns() + timeout_ns
        with self._changed:
            self._has_returns = False
            while not self._inbox and not self._woken and not self._has_returns:
                left_s = None if until_ns is None else (until_ns - SYSTEM_CLOCK.now_ns()) / 1e9
                if left_s is not None and left_s <= 0:
                    return None
                self._changed.wait(left_s)
            if not self._inbox:
                if not self._has_returns:
                    self._woken = False
                return None
            received, passed = self._inbox.popleft()
            if passed is not None and isinstance(received, Delivery) and not received.buffers:
                passed.finish_locked()  # nothing to give back
            return received

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify()

    def close(self) -> None:
        """Leave the network; the others get PeerDown after what was already sent to them."""
        with self._network.lock:
            if self._closed:
                return
            self._closed = True
            network = self._network
            network.seekers = [seek for seek in network.seekers if seek.transport is not self]
            for endpoint in self._endpoints:
                del network.listeners[endpoint]
            for end in self._ends.values():
                assert end.other is not None
                end.other.owner._lose(end.other)
            self._ends.clear()
            for _, passed in self._inbox:
                if passed is not None:
                    passed.finish_locked()
            self._inbox.clear()

    # What follows is called with the network's lock held.

    def _end(self, peer: str) -> _End:
        end = self._ends.get(peer)
        if end is None:
            raise gone(peer)
        return end

    def _put(self, received: Received, passed: _Passed | None = None) -> None:
        self._inbox.append((received, passed))
        self._changed.notify()

    def _note_return(self) -> None:
        """A blocked `receive` ends, so that its caller can look at its handles."""
        self._has_returns = True
        self._changed.notify()

    def _seek(self, seeker: _Seeker) -> None:
        listener = self._network.listeners.get(seeker.endpoint)
        if listener is not None:
            listener._connect(seeker)
            return
        self._network.seekers.append(seeker)
        error = ConnectionFailed(
            f"nothing listens at {seeker.endpoint} (peer {seeker.peer!r}) yet, retrying. "
            f"Start the other side, or check the address."
        )
        self._put(PeerFailed(seeker.peer, error, final=False))

    def _connect(self, seeker: _Seeker) -> None:
        """Let a seeker in."""
        name = f"p-{next(self._network.numbers):08x}"
        ours = _End(self, name, None)
        theirs = _End(seeker.transport, seeker.peer, seeker, other=ours)
        ours.other = theirs
        for end in (ours, theirs):
            end.owner._ends[end.peer] = end
            end.owner._put(PeerUp(end.peer))

    def _lose(self, end: _End) -> None:
        """The other side closed."""
        del self._ends[end.peer]
        self._put(PeerDown(end.peer, _LOST))
        if end.seeker is not None:
            self._seek(end.seeker)


def _check_endpoint(endpoint: str) -> None:
    if not endpoint.startswith("inproc://") or endpoint == "inproc://":
        raise ConfigError(f"{endpoint!r} is not an endpoint inside a process; write inproc://NAME")
