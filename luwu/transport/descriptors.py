"""Descriptors from one process to another, beside a ZeroMQ connection.

Beside the ipc socket at PATH a listener has a Unix socket at PATH.fd. Each connection of a dialler
has one of both kinds, matched by a token of random bytes:

    dialler     connects to PATH.fd and says the token there, then says it over ZeroMQ
    listener    reads it over ZeroMQ: by then the other connection and its token are in the kernel,
                so no call ever waits here, and no poller looks at these sockets

Afterwards either side passes the descriptor of an arena before it names the arena over ZeroMQ, so
that the same holds: what is not here when it is needed will never come. The sockets keep the
borders of messages (SOCK_SEQPACKET) and never block.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from luwu.base.errors import RemoteProtocolError
from luwu.transport.endpoints import DESCRIPTOR_SUFFIX
from luwu.transport.notices import TOKEN_BYTES

_HELLO: Final = b"luwu-fd-1"
_ARENA: Final = struct.Struct("<9sQ")
_PACKET_BYTES_MAX: Final = 64
_UNMATCHED_COUNT_MAX: Final = 1024
"""Connections without a greeting yet; the oldest is dropped beyond it."""


def path_beside(path: Path) -> Path:
    """The path of the Unix socket of a listener at `path`."""
    return path.with_name(path.name + DESCRIPTOR_SUFFIX)


class DescriptorListener:
    """The Unix socket of one endpoint, and the connections that are not matched yet."""

    def __init__(self, path: Path) -> None:
        """Listen beside `path`. Raises OSError."""
        self._path = path_beside(path)
        self._unmatched: dict[socket.socket, bytes | None] = {}  # None: no token has come
        self._socket = _new_socket()
        try:
            self._socket.bind(str(self._path))
            self._socket.listen(socket.SOMAXCONN)
        except OSError:
            self._socket.close()
            raise

    def claim(self, token: bytes) -> socket.socket | None:
        """The connection that sent this token; None if there is none."""
        self._accept_all()
        for connection, said in list(self._unmatched.items()):
            if said is None:
                self._read_token(connection)
            if self._unmatched.get(connection) == token:
                del self._unmatched[connection]
                return connection
        return None

    def close(self) -> None:
        """Close everything. Call it while the ipc socket still listens: see `endpoints`."""
        self._path.unlink(missing_ok=True)
        self._socket.close()
        for connection in self._unmatched:
            connection.close()
        self._unmatched.clear()

    def _accept_all(self) -> None:
        with suppress(OSError):  # nobody left, or no file descriptors: then the token is not found
            while True:
                connection, _ = self._socket.accept()
                connection.setblocking(False)
                self._unmatched[connection] = None
                if len(self._unmatched) > _UNMATCHED_COUNT_MAX:
                    oldest = next(iter(self._unmatched))
                    del self._unmatched[oldest]
                    oldest.close()

    def _read_token(self, connection: socket.socket) -> None:
        try:
            said = connection.recv(_PACKET_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said.startswith(_HELLO) and len(said) == len(_HELLO) + TOKEN_BYTES:
            self._unmatched[connection] = said[len(_HELLO) :]
        else:
            del self._unmatched[connection]
            connection.close()


def connect(path: Path, token: bytes) -> socket.socket:
    """A connection to the listener at `path`, with the token sent. Raises OSError."""
    connection = _new_socket()
    try:
        connection.connect(str(path_beside(path)))
        connection.send(_HELLO + token)
    except OSError:
        connection.close()
        raise
    return connection


def pass_arena(connection: socket.socket, fd: int, nbytes: int) -> bool:
    """Pass an arena's descriptor; False if the peer is gone or has too many unread."""
    try:
        socket.send_fds(connection, [_ARENA.pack(_HELLO, nbytes)], [fd])
    except OSError:
        return False
    return True


def passed_arena(connection: socket.socket) -> tuple[int, int] | None:
    """(descriptor, nbytes) of the next arena that was passed; None if there is none.

    Raises RemoteProtocolError for anything else that was received.
    """
    try:
        said, fds, _flags, _ = socket.recv_fds(
            connection, _PACKET_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC
        )
    except OSError:
        return None
    if not said and not fds:
        return None
    if len(said) == _ARENA.size and len(fds) == 1:
        magic, nbytes = _ARENA.unpack(said)
        if magic == _HELLO:
            return fds[0], nbytes
    for fd in fds:
        os.close(fd)
    raise RemoteProtocolError(
        f"{len(said)} bytes and {len(fds)} descriptors came where an arena's was expected. Is the "
        f"peer of the same version, and are file descriptors left in this process (ulimit -n)?"
    )


def _new_socket() -> socket.socket:
    new = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    new.setblocking(False)
    return new
