"""Connections to our listener as the kernel knows them: from where, whose, how many; ending one.

libzmq neither counts connections nor ends a single one. It tells of each by its file descriptor,
which may be another's by the time we look. So we look at a copy, and believe it only where both of
its ends are what they should be: our side is an endpoint that we listen at, the other side is the
address that it had when we met it.

    too many that are silent             of one address, or in all: the new one is ended, and those
                                         that have been silent for long. A connection whose first
                                         message waits to be read is not silent
    too many in all, or with one key     the new one is ended
    a Unix socket of another user        is not listened to, should the modes of files let it in
"""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK
from luwu.transport.sockets import copy_of

_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The number of connections that a listener admits."""

    total: int = 4096
    """Connections at a time, in all; the limit of open files bounds it too."""
    of_key: int = 40
    """Connections with one key: a process, its readers, and those of its last start."""
    unmet: int = 512
    """Connections that have not identified themselves, in all. libzmq ends those whose handshake
    takes too long; those that are silent after it are ended when there are too many."""
    unmet_of_address: int = 128
    """Connections of one address that have not identified themselves."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Both ends of a connection."""

    here: object
    there: object

    @property
    def address(self) -> str:
        """Its address, without the port."""
        return str(self.there[0]) if isinstance(self.there, tuple) else "this machine"

    @property
    def place(self) -> str:
        """Its origin, as logs name it."""
        return f"{self.address}:{self.there[1]}" if isinstance(self.there, tuple) else self.address


class Arrivals:
    """The connections to one listener, by file descriptor."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._ports: set[int] = set()
        self._arrived: dict[int, Arrived] = {}
        self._unmet: dict[int, int] = {}
        """When those came that have not identified themselves, oldest first."""
        self._unmet_of: Counter[str] = Counter()
        self._new: dict[int, None] = {}
        """Those of the unmet that `end_excess` has not judged; oldest first."""
        self._is_crowded = False

    def listens_at(self, port: int) -> None:
        """Only connections to our ports are ever looked at."""
        self._ports.add(port)

    def came(self, fd: int) -> str:
        """A connection was accepted; why it was ended at once, or nothing."""
        self.ended(fd)
        arrived = self._look(fd)
        if arrived is None:
            return ""  # it has gone again; or a Unix socket, whose user is looked at when it speaks
        self._arrived[fd] = arrived
        self._unmet[fd] = SYSTEM_CLOCK.now_ns()
        self._unmet_of[arrived.address] += 1
        self._new[fd] = None
        if len(self._arrived) > self.limits.total:
            return self._turn_away(fd, f"{self.limits.total} connections are open already")
        return ""

    def end_excess(self, patience_ns: int) -> list[str]:
        """End new connections, the newest first, while too many have not identified themselves;
        why, for each. If one was ended, those that have been silent for so long end, too.

        Call it when every message that has come was read: by its first, a connection identifies
        itself.
        """
        reports = []
        while self._new:
            fd, _ = self._new.popitem()
            others_count = len(self._unmet) - 1
            others_there_count = self._unmet_of[self._arrived[fd].address] - 1
            if others_count >= self.limits.unmet:
                why = f"{others_count} connections have not identified themselves"
            elif others_there_count >= self.limits.unmet_of_address:
                why = f"{others_there_count} connections from there have not identified themselves"
            else:
                continue
            reports.append(self._turn_away(fd, why))
        if self._is_crowded:
            self._is_crowded = False
            before_ns = SYSTEM_CLOCK.now_ns() - patience_ns
            for fd in [fd for fd, came_ns in self._unmet.items() if came_ns < before_ns]:
                self.end(fd)
        return reports

    def place_of(self, fd: int) -> str:
        """The origin of a connection that `came`, for logs; empty if unknown."""
        arrived = self._arrived.get(fd)
        return "" if arrived is None else arrived.place

    def met(self, fd: int) -> None:
        """It has identified itself."""
        if self._unmet.pop(fd, None) is not None:
            self._new.pop(fd, None)
            address = self._arrived[fd].address
            self._unmet_of[address] -= 1
            if not self._unmet_of[address]:
                del self._unmet_of[address]

    def ended(self, fd: int) -> None:
        """It is over."""
        self.met(fd)
        self._arrived.pop(fd, None)

    def there(self, fd: int) -> Arrived | None:
        """Both ends of a connection that has just spoken, for `end`; None if that is not known."""
        return self._look(fd) or self._arrived.get(fd)

    def end(self, fd: int, arrived: Arrived | None = None) -> bool:
        """End the connection that had these ends when we met it; False if it is gone already.

        libzmq notices as it does when the other side ends it.
        """
        arrived = arrived or self._arrived.get(fd)
        copy = copy_of(fd)
        if copy is None or arrived is None:
            return False
        with copy:
            if _ends_of(copy) != arrived:
                return False
            with suppress(OSError):
                copy.shutdown(socket.SHUT_RDWR)
        return True

    def is_unix(self, fd: int) -> bool:
        """True if it is a Unix socket, for sure."""
        with copy_of(fd) or nullcontext() as copy:
            return copy is not None and copy.family == socket.AF_UNIX

    def is_foreign(self, fd: int) -> bool:
        """True if another user (root aside) is at the other end of a Unix socket."""
        with copy_of(fd) or nullcontext() as copy, suppress(OSError):
            if copy is not None and copy.family == socket.AF_UNIX:
                size = _CREDENTIALS.size
                found = copy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                return _CREDENTIALS.unpack(found)[1] not in (os.geteuid(), 0)
        return False

    def _turn_away(self, fd: int, why: str) -> str:
        self._is_crowded = True
        self.met(fd)  # nothing more is expected of it
        self.end(fd)
        return f"a connection from {self.place_of(fd)} was closed: {why}"

    def _look(self, fd: int) -> Arrived | None:
        with copy_of(fd) or nullcontext() as copy:
            arrived = None if copy is None else _ends_of(copy)
        if arrived is None or not isinstance(arrived.here, tuple):
            return None
        return arrived if arrived.here[1] in self._ports else None


def _ends_of(connection: socket.socket) -> Arrived | None:
    try:
        return Arrived(connection.getsockname(), connection.getpeername())
    except OSError:
        return None
