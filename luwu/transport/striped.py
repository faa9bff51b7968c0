"""Transport over ZeroMQ that may reach a peer over several connections at once (`stripes`).

One connection is served by one of libzmq's I/O threads, so by one core at each end. A link of
several stripes is one peer: it has one PeerUp, one PeerDown, one credit and one order; the stripes
are peers of a `ZeroMqTransport` inside this one.

The dialling side decides how many stripes; the listening side learns it from the announcement that
each of them begins with (`stripes`). What is dialled over one connection announces nothing, and is
the inner transport's as it is. `striped_links` has the life of a link. Where no stripes are
configured, `opening` makes a `ZeroMqTransport` alone, which lets no link of several stripes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError
from luwu.base.limits import CREDIT_BYTES_DEFAULT, STRIPES_MAX
from luwu.transport.around import TransportAround
from luwu.transport.arrivals import ConnectionLimits
from luwu.transport.curve import Security
from luwu.transport.interface import (
    Buffer,
    Received,
    SendHandle,
    checked_views,
)
from luwu.transport.sockets import ZeroMqTiming
from luwu.transport.striped_links import Links
from luwu.transport.stripes import ANNOUNCEMENT_BYTES
from luwu.transport.zeromq import ZeroMqTransport


class StripedTransport(TransportAround[ZeroMqTransport]):
    """tcp:// and ipc:// links of one process role, over `stripes` connections where it dials."""

    def __init__(
        self,
        *,
        stripes: int = 1,
        credit_bytes: int = CREDIT_BYTES_DEFAULT,
        insecure: bool = False,
        security: Security | None = None,
        limits: ConnectionLimits | None = None,
        io_threads: int = 1,
        timing: ZeroMqTiming | None = None,
    ) -> None:
        if not 1 <= stripes <= STRIPES_MAX:
            raise ConfigError(f"stripes must be 1 to {STRIPES_MAX}, got {stripes!r}")
        inner = ZeroMqTransport(
            credit_bytes=credit_bytes,
            insecure=insecure,
            security=security,
            limits=limits,
            io_threads=io_threads,
            timing=timing,
            greeting_bytes=ANNOUNCEMENT_BYTES,
        )
        super().__init__(inner)
        self._stripes_count = stripes
        self._links = Links(self._inner)
        self._is_woken = False

    def dial(self, peer: str, endpoint: str) -> None:
        """Connect to a peer; see `Transport.dial`."""
        if self._stripes_count == 1:
            self._inner.dial(peer, endpoint)
        else:
            self._links.dial(peer, endpoint, self._stripes_count)

    def send(self, peer: str, header: bytes, buffers: Sequence[Buffer] = ()) -> SendHandle:
        """Queue one message; see `Transport.send`."""
        if peer in self._links:
            return self._links.lane(peer).send(header, checked_views(header, buffers))
        return self._inner.send(peer, header, buffers)

    def credit(self, peer: str) -> int:
        """Bytes that may be queued now; see `Transport.credit`."""
        if peer in self._links:
            return self._links.lane(peer).credit_bytes()
        return self._inner.credit(peer)

    def receive(self, timeout_ns: int | None) -> Received | None:
        """The next message or event; see `Transport.receive`."""
        links = self._links
        if links.ready:
            return links.ready.popleft()
        until_ns = None if not timeout_ns else SYSTEM_CLOCK.now_ns() + timeout_ns
        while True:
            wait_ns = links.wait_ns(timeout_ns) if links.timed else timeout_ns
            heard = self._inner.receive(wait_ns)
            is_plain = heard is not None and not links.concern(heard)
            if is_plain and not links.timed:
                return heard
            if heard is not None and not is_plain:
                links.understand(heard)
            if links.timed:
                links.look_at_the_clock(is_idle=heard is None)
            if is_plain:
                return heard
            if links.ready:
                return links.ready.popleft()
            if until_ns is not None:
                timeout_ns = max(0, until_ns - SYSTEM_CLOCK.now_ns())
            if heard is None and (self._is_woken or timeout_ns == 0):
                self._is_woken = False
                return None

    def waits_on(self) -> list[tuple[Any, int]]:
        """For a transport beside this one: what a blocked `receive` would poll."""
        return self._inner.waits_on()

    def wait_ns(self, timeout_ns: int | None) -> int | None:
        """The most time that it may block; less than asked where a link has a deadline."""
        return self._links.wait_ns(timeout_ns)

    def wake(self) -> None:
        """End a blocked `receive`; see `Transport.wake`."""
        self._is_woken = True
        self._inner.wake()

    def close(self) -> None:
        """Close everything; see `ZeroMqTransport.close`."""
        self._inner.close()
        self._links.close()
