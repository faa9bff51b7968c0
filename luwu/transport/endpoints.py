"""Endpoints as users write them, checked before a socket sees them.

    tcp://HOST:PORT        port 0 when listening: the system chooses
    tcp://KEY@HOST:PORT    the same where who listens has that public key: nothing else is believed
    tcp://...,HOST:PORT    to dial: places that are tried in turn; a key holds for those after it
    ipc://PATH             a Unix socket; ipc://auto: a private directory of ours, removed at close
    shm://PATH             the same for a transport over shared memory, with a second at PATH.fd

libzmq would take an ipc path over from a live process without a word, and a host that does not
resolve would be tried for ever; both are found here.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, Self, TypeAlias

from luwu.base.errors import ConfigError, ConnectionFailed
from luwu.base.keys import key_text, parse_key
from luwu.base.quantities import decimal
from luwu.base.socket_directory import answers, private_directory

IPC_PATH_BYTES_MAX: Final = 107
"""sockaddr_un holds 108 bytes with the final zero."""

DESCRIPTOR_SUFFIX: Final = ".fd"
"""Suffix of the socket for file descriptors, beside the socket of a shm:// endpoint."""

_AUTO_PREFIX = "luwu-ipc-"
_SOCKET_NAME = "s"
_AUTO_PARENT_BYTES_MAX = IPC_PATH_BYTES_MAX - len(
    f"/{_AUTO_PREFIX}1234567-12345678/{_SOCKET_NAME}{DESCRIPTOR_SUFFIX}"
)


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """tcp://KEY@HOST:PORT; an IPv6 address is in brackets in the text, not here."""

    host: str
    port: int
    key: bytes | None = None
    """Public key of who listens; None: nothing is encrypted."""
    is_tcp: ClassVar[bool] = True

    def __str__(self) -> str:
        at = "" if self.key is None else f"{key_text(self.key)}@"
        return f"tcp://{at}{self.where}"

    @property
    def where(self) -> str:
        """HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """As libzmq takes it."""
        return f"tcp://{self.where}"

    @property
    def is_loopback(self) -> bool:
        """True if no byte leaves the host, as far as the text tells: names are not looked up."""
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def is_ipv6(self) -> bool:
        """True if the host is an IPv6 address."""
        return ":" in self.host

    @property
    def is_wildcard(self) -> bool:
        """True if this means every address of the machine."""
        return self.host in ("*", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class IpcEndpoint:
    """ipc://PATH."""

    path: Path
    key: ClassVar[None] = None
    is_tcp: ClassVar[bool] = False
    is_ipv6: ClassVar[bool] = False
    is_loopback: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"ipc://{self.path}"

    @property
    def address(self) -> str:
        """As libzmq takes it."""
        return str(self)


Endpoint: TypeAlias = TcpEndpoint | IpcEndpoint


class MovableEndpoint(str):
    """An endpoint to dial that is looked up before each attempt: the process there may move."""

    look: Callable[[], str]
    """Finds the current endpoint; if it raises a LuwuError, the last one counts."""

    def __new__(cls, endpoint: str, look: Callable[[], str]) -> Self:
        """`endpoint`: where it was found first."""
        made = super().__new__(cls, endpoint)
        made.look = look
        return made


def parse(endpoint: str) -> Endpoint:
    """The parts of an endpoint. Raises ConfigError."""
    scheme, separator, rest = endpoint.partition("://")
    if scheme == "tcp" and separator:
        before, at, after = rest.rpartition("@")
        key = parse_key(before, endpoint) if at else None
        host, colon, port = after.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        number = decimal(port)
        if host and colon and number is not None and number < 65536:
            return TcpEndpoint(host, number, key)
    elif scheme == "ipc" and rest:
        return _at_path(rest, endpoint)
    raise ConfigError(f"{endpoint!r} is not an endpoint; write tcp://HOST:PORT or ipc://PATH")


def parse_places(endpoint: str) -> tuple[Endpoint, ...]:
    """All places of an endpoint to dial, each as an endpoint. Raises ConfigError."""
    first, *others = endpoint.split(",") if endpoint.startswith("tcp://") else [endpoint]
    places = [parse(first)]
    for text in others:
        place = parse(f"tcp://{text}")
        if place.key is None and isinstance(place, TcpEndpoint):
            place = replace(place, key=places[-1].key)
        places.append(place)
    return tuple(places)


def parse_shared(endpoint: str) -> IpcEndpoint:
    """The ipc socket of a shm:// endpoint. Raises ConfigError."""
    scheme, _, rest = endpoint.partition("://")
    if scheme != "shm" or not rest:
        raise ConfigError(f"{endpoint!r} is not an endpoint here; write shm://PATH or shm://auto")
    return _at_path(rest, endpoint, suffix=DESCRIPTOR_SUFFIX)


def _at_path(path: str, endpoint: str, suffix: str = "") -> IpcEndpoint:
    """The socket at a path, which fits with the suffix too. Raises ConfigError."""
    path_bytes = len(os.fsencode(Path(path + suffix)))
    if path_bytes > IPC_PATH_BYTES_MAX:
        what = f"the path and {suffix} have" if suffix else "the path has"
        raise ConfigError(
            f"{endpoint}: {what} {path_bytes} bytes, a Unix socket's may have "
            f"{IPC_PATH_BYTES_MAX}; use a shorter one, or {endpoint.partition('/')[0]}//auto"
        )
    return IpcEndpoint(Path(path))


def address_of(endpoint: TcpEndpoint) -> str:
    """The numeric address of the host. Raises ConnectionFailed."""
    family = socket.AF_INET6 if endpoint.is_ipv6 else socket.AF_INET
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise ConnectionFailed(
            f"cannot resolve the host {endpoint.host!r} of {endpoint}: {exc}. "
            f"Check its spelling, or give its address."
        ) from exc
    return str(found[0][4][0])


def check_known(places: Sequence[Endpoint]) -> None:
    """Raises ConnectionFailed if no place has a known host: libzmq would try for ever, in
    silence."""
    for place in places:
        try:
            if isinstance(place, TcpEndpoint):
                address_of(place)
            return
        except ConnectionFailed:
            if place is places[-1]:
                raise


def listening_endpoint(endpoint: TcpEndpoint, *, own_key: bytes | None) -> TcpEndpoint:
    """The endpoint to bind, numeric, with our key. Raises ConfigError if no peer could reach it."""
    if endpoint.is_wildcard:
        raise ConfigError(
            f"{endpoint} means every address of this machine, including those that should stay "
            f"closed. Give one address, such as that of the network of the workers."
        )
    if endpoint.key not in (None, own_key):
        raise ConfigError(
            f"{endpoint} names a key that is not ours; give the --keys and --key-name it was made "
            f"with, or leave the key out of where to listen"
        )
    try:
        return TcpEndpoint(address_of(endpoint), endpoint.port, own_key)
    except ConnectionFailed as exc:
        raise ConfigError(str(exc)) from exc


def check_secure(endpoint: TcpEndpoint, *, insecure: bool, own_key: bool, verb: str) -> None:
    """Off loopback nothing passes without keys, unless the user allows it.

    `own_key`: this process has a key; `verb`: listen or dial. Raises ConfigError.
    """
    if endpoint.key is not None and not own_key:
        raise ConfigError(
            f"{endpoint} is encrypted, and this process has no key of its own; give --keys DIR "
            f"(LUWU_KEYS) with the secret file that luwu keys made for it"
        )
    if endpoint.key is not None:
        return
    if verb == "dial" and own_key:
        raise ConfigError(
            f"{endpoint} names no public key, and this process has keys: any process could answer "
            f"there. Copy the whole line that luwu up printed, or omit --keys"
        )
    if endpoint.is_loopback or insecure:
        return
    if verb == "dial":
        raise ConfigError(
            f"{endpoint} is reached over a network and names no public key. Copy the whole line "
            f"that luwu up printed there: with --keys DIR it includes a key, with --insecure it is "
            f"marked insecure."
        )
    raise ConfigError(
        f"{endpoint} is reached over a network, and nothing limits who may connect. Create "
        f"keys with luwu keys init and give --keys DIR, listen on 127.0.0.1, or pass --insecure on "
        f"a network you trust.",
        code="E209",
    )


def advertised(advertise: str, bound: TcpEndpoint) -> str:
    """`advertise` (HOST, HOST:PORT or tcp://HOST:PORT; several with commas), with the bound port
    where it has none. Raises ConfigError."""
    if "@" in advertise:
        raise ConfigError(
            f"advertise {advertise!r}: the key of this process is added to it; omit the key"
        )
    first, *others = advertise.removeprefix("tcp://").split(",")
    places = [_advertised_place(text, advertise, bound) for text in (first, *others)]
    return ",".join([str(replace(places[0], key=bound.key)), *(each.where for each in places[1:])])


def _advertised_place(text: str, advertise: str, bound: TcpEndpoint) -> TcpEndpoint:
    is_plain = text.count(":") == 1 or "]:" in text
    if not is_plain or decimal(text.rpartition(":")[2]) is None:
        is_bare_ipv6 = text.count(":") > 1 and not text.startswith("[")
        text = f"[{text}]:{bound.port}" if is_bare_ipv6 else f"{text}:{bound.port}"
    place = parse(f"tcp://{text}")
    assert isinstance(place, TcpEndpoint)
    if place.is_wildcard:
        raise ConfigError(f"advertise {advertise!r}: this address cannot be dialled; name one")
    return replace(place, port=place.port or bound.port)


def bind_error(endpoint: Endpoint, code: int, text: str) -> ConfigError:
    """The error for a failed bind: the reason, and what to do."""
    if code == errno.EADDRINUSE:
        return ConfigError(
            f"{endpoint} is in use by another process; stop it, choose another port, or port 0 "
            f"for a free one",
            code="E206",
        )
    if code == errno.EADDRNOTAVAIL:
        return ConfigError(
            f"{endpoint} is not an address of this machine; listen on one that is", code="E206"
        )
    return ConfigError(
        f"cannot listen at {endpoint}: {text}; check the address and your rights", code="E206"
    )


@contextmanager
def private_ipc_endpoint() -> Iterator[IpcEndpoint]:
    """A socket path in a new directory that only this user may enter; removed on ConfigError, else
    by `remove_socket`."""
    directory = private_directory(_AUTO_PREFIX, parent_bytes_max=_AUTO_PARENT_BYTES_MAX, young_ns=0)
    endpoint = IpcEndpoint(directory / _SOCKET_NAME)
    try:
        yield endpoint
    except ConfigError:
        remove_socket(endpoint)
        raise


def remove_socket(endpoint: IpcEndpoint) -> None:
    """Remove a socket's file, and the directory made for it by `private_ipc_endpoint`.

    To be called while the socket still listens: afterwards the file may be a successor's.
    """
    endpoint.path.unlink(missing_ok=True)
    if endpoint.path.parent.name.startswith(_AUTO_PREFIX):
        shutil.rmtree(endpoint.path.parent, ignore_errors=True)


def clear_stale_socket(endpoint: IpcEndpoint) -> None:
    """Remove the socket of a dead process. Raises ConfigError for a live one, or for no socket."""
    path = endpoint.path
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if path.parent.is_dir():
            return
        raise ConfigError(
            f"{endpoint}: no directory {path.parent}; make it, or use ipc://auto"
        ) from None
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{endpoint}: {path} exists and is not a socket; choose another path")
    if answers(path):
        raise ConfigError(
            f"{endpoint} is in use by a live process; stop it, or choose another path, "
            f"or ipc://auto"
        )
    path.unlink(missing_ok=True)
