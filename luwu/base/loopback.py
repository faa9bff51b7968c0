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


def host(otherwise: str) -> str:
    """The address to listen at. Raises ConfigError, which ends with what to do `otherwise`."""
    try:
        with listen() as found:
            return "::1" if found.family == socket.AF_INET6 else "127.0.0.1"
    except OSError as exc:
        raise ConfigError(
            f"this machine has neither 127.0.0.1 nor ::1 to listen at ({exc.strerror}); bring "
            f"loopback up (ip link set lo up), {otherwise}",
            code="E206",
        ) from exc


def endpoint() -> str:
    """Where to listen to processes of this machine, at any free port. Raises ConfigError."""
    return f"tcp://{bracketed(host('give --bind an address, or use --transport shm'))}:0"


def bracketed(host: str) -> str:
    """A host as a URL has it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
