"""The meeting of two transports over shared memory: from ZeroMQ's PeerUp to ours.

    dialler     inner PeerUp -> connects the Unix socket, says GREETING     `Meetings.begin`
    listener    inner PeerUp -> waits for it                                `Meetings.begin`
                GREETING     -> finds the Unix socket, answers MET, is up   `Meetings.hear`
    dialler     MET          -> is up                                       `Meetings.hear`
    either      inner PeerDown before that -> all is forgotten              `Meetings.end`

Nothing here waits. A peer that sends anything else first is not of this run: it is reported once,
as a stranger or under the name that we gave it, and no longer listened to.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from luwu.base.errors import ConfigError, ConnectionFailed, RemoteProtocolError
from luwu.transport import descriptors, endpoints, notices
from luwu.transport.interface import (
    LISTENER,
    CreditExceeded,
    Delivery,
    PeerFailed,
    PeerGone,
    Received,
)
from luwu.transport.shared_links import Link
from luwu.transport.zeromq import ZeroMqTransport


class Meetings:
    """The endpoints of one transport, and the peers that are not up yet."""

    def __init__(self, inner: ZeroMqTransport) -> None:
        self._inner = inner
        self._listeners: list[descriptors.DescriptorListener] = []
        self._dialled: dict[str, Path] = {}
        self._greeted: dict[str, socket.socket] = {}
        """Dialled peers that have not answered."""
        self._waiting: set[str] = set()
        """Peers of our listener that have sent nothing."""
        self._ignored: set[str] = set()
        """Peers that sent, or could not do, what is needed; until their connection ends."""

    def listen(self, endpoint: str) -> str:
        if endpoint != "shm://auto":
            return self._listen(endpoints.parse_shared(endpoint))
        with endpoints.private_ipc_endpoint() as private:
            return self._listen(private)

    def dial(self, peer: str, endpoint: str) -> None:
        wanted = endpoints.parse_shared(endpoint)
        self._inner.dial(peer, str(wanted))
        self._dialled[peer] = wanted.path

    def begin(self, peer: str) -> PeerFailed | None:
        """A ZeroMQ connection exists."""
        path = self._dialled.get(peer)
        if path is None:
            self._waiting.add(peer)
            return None
        token = os.urandom(notices.TOKEN_BYTES)
        try:
            self._greeted[peer] = descriptors.connect(path, token)
        except OSError as exc:
            self._ignored.add(peer)
            error = ConnectionFailed(
                f"something answers at shm://{path} (peer {peer!r}), but takes no descriptors at "
                f"{descriptors.path_beside(path)}: {exc}. It is stopping, or it is not this run; "
                f"check the address."
            )
            return PeerFailed(peer, error, final=False)
        self._say(peer, notices.greeting(token))
        return None

    def hear(self, delivery: Delivery) -> Link | PeerFailed | None:
        """A message of a peer that is not up: the link if it is now."""
        peer, notice, frames_count = delivery.peer, delivery.header, len(delivery.buffers)
        if peer in self._ignored:
            return None
        if peer in self._greeted:
            channel = self._greeted.pop(peer)
            if notice == notices.met() and not frames_count:
                return Link(peer, channel)
            channel.close()
            return self._refuse(peer, peer, f"what answers at shm://{self._dialled[peer]}")
        self._waiting.discard(peer)
        token = notices.greeted_token(notice, frames_count)
        if token is not None:
            for listener in self._listeners:
                found = listener.claim(token)
                if found is not None:
                    self._say(peer, notices.met())
                    return Link(peer, found)
        return self._refuse(peer, LISTENER, "something at our listener")

    def end(self, peer: str) -> PeerFailed | None:
        """The ZeroMQ connection of a peer that was not up is over."""
        self._ignored.discard(peer)
        channel = self._greeted.pop(peer, None)
        if channel is not None:
            channel.close()
        if peer not in self._waiting:
            return None
        self._waiting.discard(peer)
        error = ConnectionFailed(
            "a client connected to our listener and disconnected without a greeting: another "
            "program, or a process of this run that died at once. It was rejected."
        )
        return PeerFailed(LISTENER, error, final=False)

    def translated(self, failed: PeerFailed) -> Received:
        """A failure of the inner transport, with our endpoints in its text."""
        peer, error = failed.peer, failed.error
        if peer in self._waiting or (peer in self._ignored and peer not in self._dialled):
            peer = LISTENER
        kind = RemoteProtocolError if isinstance(error, RemoteProtocolError) else ConnectionFailed
        return PeerFailed(peer, kind(_our_words(str(error))), failed.final)

    def close(self) -> None:
        """Listen no more; call it before the inner transport is closed."""
        for listener in self._listeners:
            listener.close()
        for channel in self._greeted.values():
            channel.close()
        self._listeners.clear()
        self._greeted.clear()

    def _listen(self, wanted: endpoints.IpcEndpoint) -> str:
        beside = endpoints.IpcEndpoint(descriptors.path_beside(wanted.path))
        try:
            endpoints.clear_stale_socket(wanted)
            endpoints.clear_stale_socket(beside)
            try:
                listener = descriptors.DescriptorListener(wanted.path)
            except OSError as exc:
                raise endpoints.bind_error(beside, exc.errno or 0, exc.strerror or "") from exc
            try:
                self._inner.listen(str(wanted))
            except ConfigError:
                listener.close()
                raise
        except ConfigError as exc:
            raise ConfigError(_our_words(str(exc))) from exc
        self._listeners.append(listener)
        return f"shm://{wanted.path}"

    def _say(self, peer: str, notice: bytes) -> None:
        with suppress(PeerGone, CreditExceeded):  # gone: its end is reported next
            self._inner.send(peer, notice)

    def _refuse(self, peer: str, reported_as: str, who: str) -> PeerFailed:
        self._ignored.add(peer)
        error = RemoteProtocolError(
            f"{who} (peer {peer!r}) did not greet as transports over shared memory do, or its "
            f"descriptor connection was lost (ulimit -n?). Its messages are ignored; stop "
            f"it, or correct the address it uses."
        )
        return PeerFailed(reported_as, error, final=False)


def _our_words(text: str) -> str:
    return text.replace("ipc://", "shm://")
