"""Loopback: 127.0.0.1, or ::1 on a machine that has IPv6 alone."""

from __future__ import annotations

import socket

from luwu.base.errors import ConfigError


def listen() -> socket.socket:
    """A socket that listens at a free port of loopback. Raises OSError where there is none."""
    try:
        return socket.create_server(("127.0.0.1", 0))
    except OSError:
        return socket.create_server(("::1", 0), family=socket.AF_INET6)


def endpoint() -> str:
    """Where to listen to processes of this machine, at any free port. Raises ConfigError."""
    try:
        with listen() as found:
            is_ipv6 = found.family == socket.AF_INET6
    except OSError as exc:
        raise ConfigError(
            f"this machine has neither 127.0.0.1 nor ::1 to listen at ({exc.strerror}); bring "
            "loopback up (ip link set lo up), give --bind an address, or use --transport shm",
            code="E206",
        ) from exc
    return "tcp://[::1]:0" if is_ipv6 else "tcp://127.0.0.1:0"
