"""A transport around another one: every call that is not overridden goes to the inner one."""

from __future__ import annotations

from collections.abc import Sequence

from luwu.transport.interface import Buffer, Received, SendHandle, Transport


class TransportAround(Transport):
    """Passes every call on to `inner`. Closing it closes `inner`."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    def listen(self, endpoint: str, *, advertise: str | None = None) -> str:
        """Accept peers; see `Transport.listen`."""
        return self._inner.listen(endpoint, advertise=advertise)

    def dial(self, peer: str, endpoint: str) -> None:
        """Connect to a peer; see `Transport.dial`."""
        self._inner.dial(peer, endpoint)

    def reserve(self, nbytes: int) -> memoryview:
        """Memory from where the inner transport sends best; see `Transport.reserve`."""
        return self._inner.reserve(nbytes)

    def send(self, peer: str, header: bytes, buffers: Sequence[Buffer] = ()) -> SendHandle:
        """Queue one message; see `Transport.send`."""
        return self._inner.send(peer, header, buffers)

    def gather(self) -> None:
        """Let messages wait for others; see `Transport.gather`."""
        self._inner.gather()

    def flush(self) -> None:
        """Let them leave; see `Transport.flush`."""
        self._inner.flush()

    def credit(self, peer: str) -> int:
        """Bytes that may be queued now; see `Transport.credit`."""
        return self._inner.credit(peer)

    def receive(self, timeout_ns: int | None) -> Received | None:
        """The next message or event; see `Transport.receive`."""
        return self._inner.receive(timeout_ns)

    def wake(self) -> None:
        """End a blocked `receive`; see `Transport.wake`."""
        self._inner.wake()

    def close(self) -> None:
        """Close the inner transport; see `Transport.close`."""
        self._inner.close()
