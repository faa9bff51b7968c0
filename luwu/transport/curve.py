"""Keys on sockets: CURVE encrypts every frame of a tcp connection and proves the keys of both ends.

libzmq does the cryptography (Curve25519, XSalsa20, Poly1305: the handshake of CurveZMQ, ZeroMQ's
RFC 26). A listener shows that it has the key of its endpoint; a dialler shows its own,
and `zap.py` says whose that is. Everything here is about the options of sockets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.utils import z85

from luwu.base.errors import ConfigError
from luwu.base.keys import OwnKey, SecretKey, read_allowed, read_secret

LIBZMQ_VERSION_MIN: Final = (4, 3, 3)
"""Before it, a peer could crash a listener without a key (CVE-2020-15166)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The key pair of a transport, and the keys that its listener admits."""

    own: OwnKey
    accepts: frozenset[str] = frozenset()
    """Roles of keys that may connect to it."""

    @property
    def public(self) -> bytes:
        """Our public key."""
        return public_of(self.own.secret)


def open_security(directory: Path | None, name: str, *accepts: str) -> Security | None:
    """The security of a process called `name`; None without a directory. Raises ConfigError."""
    if directory is None:
        return None
    check_curve()
    security = Security(own=read_secret(directory, name), accepts=frozenset(accepts))
    if accepts:
        read_allowed(directory)  # what is wrong with it is found before anything listens
    return security


def new_key_pair() -> tuple[bytes, SecretKey]:
    """A public key and its secret. Raises ConfigError."""
    check_curve()
    public, secret = zmq.curve_keypair()
    return z85.decode(public), SecretKey(z85.decode(secret))


def public_of(secret: SecretKey) -> bytes:
    """The public key that belongs to a secret one."""
    decoded: bytes = z85.decode(zmq.curve_public(z85.encode(secret.reveal())))
    return decoded


def serve_keyed(socket: zmq.Socket[Any], security: Security) -> None:
    """Let the next bind prove our key, and ask ZAP about every peer.

    It has no ZAP domain: with one, libzmq would ask about Unix sockets of the same ROUTER too.
    """
    socket.curve_secretkey = z85.encode(security.own.secret.reveal())
    socket.curve_publickey = z85.encode(security.public)
    socket.curve_server = True


def dial_keyed(socket: zmq.Socket[Any], security: Security, server_key: bytes) -> None:
    """Let the next connect demand `server_key`, and prove ours."""
    socket.curve_serverkey = z85.encode(server_key)
    socket.curve_secretkey = z85.encode(security.own.secret.reveal())
    socket.curve_publickey = z85.encode(security.public)


def leave_open(socket: zmq.Socket[Any]) -> None:
    """Let the next bind be without encryption."""
    socket.curve_server = False


# ---------------------------------------------------------------------- the library


def check_libzmq() -> None:
    """Refuse a libzmq with known holes. Raises ConfigError."""
    found = zmq.zmq_version_info()
    if found < LIBZMQ_VERSION_MIN:
        raise ConfigError(
            f"libzmq {'.'.join(map(str, found))} is older than "
            f"{'.'.join(map(str, LIBZMQ_VERSION_MIN))} and can be crashed from outside; "
            f"upgrade pyzmq"
        )


def check_curve() -> None:
    """Refuse a libzmq that cannot encrypt. Raises ConfigError."""
    check_libzmq()
    if not zmq.has("curve"):
        raise ConfigError(
            f"libzmq {zmq.zmq_version()} was built without CURVE, so keys cannot be used; install "
            f"pyzmq from its own wheels (pip install --only-binary pyzmq pyzmq)"
        )


def curve_library() -> str:
    """The library that encrypts: libsodium, or libzmq's own code, which is slow."""
    if not zmq.has("curve"):
        return "none"
    zmq.curve_keypair()  # loads it
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return "libsodium" if "libsodium" in mapped else "libzmq's own (tweetnacl)"
