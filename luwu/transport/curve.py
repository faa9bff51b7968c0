"""Keys on sockets: CURVE encrypts every frame of a tcp connection and proves the keys of both ends.

libzmq does the cryptography (Curve25519, XSalsa20, Poly1305: the handshake of CurveZMQ, ZeroMQ's
RFC 26). A listener shows that it has the key of its endpoint; a dialler shows its own. `ZapHandler`
says whose that is, and whether it may connect: libzmq asks it about every key (ZAP, RFC 27).

    the transport         binds the handler's socket, then starts its thread, then lets others in
    the handler's thread  answers libzmq; reads the list of allowed keys again when it changes
    the transport         looks whether the handler is alive, and which keys lost their right

No connection is admitted unless a row of the list says so: an unknown mechanism, domain or key, a
role that this listener does not take, a list that cannot be read, a request that makes no sense, a
mistake in the handler itself are all refusals. libzmq lets everybody in where no handler is
*bound*. So the socket belongs to the transport, not to the thread: if the thread ends, questions
stay unanswered, connections wait until their handshake runs out, and the transport raises
`KeysFailed`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.utils import z85

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, KeysFailed
from luwu.base.failpoints import failpoint
from luwu.base.keys import ALLOWED, Identity, OwnKey, SecretKey, key_text, read_allowed, read_secret

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


ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
LOOK_MS: Final = 250
"""The time until a change of the list is seen."""
SILENCE_NS_MAX: Final = 1_500_000_000
"""A handler that gives no sign of life for this long, while we do, is dead."""
_REFUSED_KEPT: Final = 256
"""Refusals that wait to be reported; a flood of them is reported in part."""
_FRAMES_COUNT: Final = 7  # of a request of CURVE; of the others there may be less or more


class ZapHandler:
    """The handler of one transport; its thread lives from `start` to `close`."""

    def __init__(
        self, context: zmq.Context[Any], security: Security, wake: Callable[[], None]
    ) -> None:
        """Binds; `wake` is called from the thread when there is something to look at.

        Raises ConfigError where the list of keys cannot be read.
        """
        self._directory = security.own.directory
        self._accepts = security.accepts
        self._wake = wake
        self._allowed: Mapping[bytes, Identity] = read_allowed(self._directory)
        self._seen = _stamp(self._directory)
        self._trouble = ""
        self.version = 0
        """Grows when the list of allowed keys has changed."""
        self.refused: deque[str] = deque(maxlen=_REFUSED_KEPT)
        """Rejected connections, with the reason, oldest first."""
        self._beat_ns = self._looked_ns = SYSTEM_CLOCK.now_ns()
        self._silent_ns = 0
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._socket: zmq.Socket[Any] = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.rcvtimeo = LOOK_MS
        self._socket.bind(ZAP_ENDPOINT)
        self._thread = threading.Thread(target=self._serve, name="luwu-zap", daemon=True)
        self._thread.start()

    def identity_of(self, key: bytes) -> Identity | None:
        """The owner of a key; None if it may not connect (any more)."""
        identity = self._allowed.get(key)
        return identity if identity is not None and identity.role in self._accepts else None

    def check_alive(self) -> None:
        """Raises KeysFailed if libzmq gets no answers any more; call it often."""
        now_ns = SYSTEM_CLOCK.now_ns()
        # A process that was stopped, or busy elsewhere, has not looked for as long itself: only
        # time that we were awake for counts.
        awake_ns = min(now_ns - self._looked_ns, LOOK_MS * 1_000_000)
        self._looked_ns = now_ns
        is_silent = now_ns - self._beat_ns > SILENCE_NS_MAX
        self._silent_ns = self._silent_ns + awake_ns if is_silent else 0
        if self._thread.is_alive() and self._silent_ns < SILENCE_NS_MAX:
            return
        why = f": {self._error!r}" if self._error is not None else ""
        raise KeysFailed(
            f"the thread that checks keys has ended or does not answer{why}. Connections can no "
            f"longer be accepted safely, so this process stops; start it again, and report this "
            f"if it happens again."
        )

    def close(self) -> None:
        """End the thread and close its socket: only when nothing listens any more."""
        self._stopping.set()
        self._thread.join()
        self._socket.close()

    # ---------------------------------------------------------------------- the thread

    def _serve(self) -> None:
        try:
            while not self._stopping.is_set():
                self._beat_ns = SYSTEM_CLOCK.now_ns()
                try:
                    request = self._socket.recv_multipart()
                except zmq.Again:
                    self._look_at_list()
                    continue
                failpoint("zap.request")
                self._look_at_list()
                self._socket.send_multipart(self._answer(request))
        except BaseException as exc:
            self._error = exc
        finally:
            self._wake()

    def _answer(self, request: list[bytes]) -> list[bytes]:
        version, request_id = (*request[:2], b"", b"")[:2]
        try:
            key, who, why = self._judge(request)
        except (LookupError, ValueError, UnicodeError) as exc:
            key, who, why = b"", "a client", f"its request is malformed ({exc})"
        if not why:
            user_id = key_text(key).encode("ascii")
            return [version, request_id, b"200", b"OK", user_id, b""]
        self.refused.append(f"{who} was rejected: {why}")
        self._wake()
        code = b"300" if self._trouble else b"400"  # 300: who comes may try again
        return [version, request_id, code, b"refused", b"", b""]

    def _judge(self, request: list[bytes]) -> tuple[bytes, str, str]:
        """(key, who it is, why it may not come in; empty if it may)."""
        _, _, domain, address, _, mechanism, *credentials = request
        who = f"something at {address.decode('ascii', 'replace'):.60}"
        if mechanism != b"CURVE" or len(request) != _FRAMES_COUNT or domain:
            return b"", who, f"it connected with {mechanism!r:.30}; only CURVE is accepted"
        key = credentials[0]
        identity = self._allowed.get(key)
        if self._trouble:
            return key, who, f"no new connection is accepted: {self._trouble}"
        if identity is None:
            return key, who, (
                f"its key {key_text(key)[:16]}... is not in {self._directory / ALLOWED} (any more)"
            )  # fmt: skip
        if identity.role not in self._accepts:
            return key, who, (
                f"its key is that of {identity.name!r}, a {identity.role}; accepted roles are "
                f"{', '.join(sorted(self._accepts))}"
            )  # fmt: skip
        return key, who, ""

    def _look_at_list(self) -> None:
        """Read the list again if it is another one."""
        stamp = _stamp(self._directory)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            allowed, trouble = read_allowed(self._directory), ""
        except ConfigError as exc:
            # Who is in stays in, for that is not what the list says; nobody new comes in.
            allowed, trouble = dict(self._allowed), str(exc)
            self.refused.append(f"no new connection is accepted from now on: {trouble}")
        self._allowed, self._trouble = allowed, trouble
        self.version += 1
        self._wake()


def _stamp(directory: Path) -> tuple[int, int, int] | None:
    """A stamp that changes with the list, or with its permissions."""
    try:
        found = (directory / ALLOWED).stat()
    except OSError:
        return None
    return found.st_ctime_ns, found.st_ino, found.st_size
