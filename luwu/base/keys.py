"""Keys of the processes of a job: a directory of small files, and what may be believed of them.

    DIR/                   mode 0700
      allowed.json         mode 0600   who may connect: name, role and public key of each
      worker-0.secret      mode 0600   the secret key of one name; only where that process runs

`allowed.json` is the authority. A listener reads it again whenever it changes, so taking a row out
closes that key's connections; a secret file without a row in it opens nothing. A process that only
dials needs its own secret file and no list: the public key of its peer is in the endpoint.

A name is that of a process, not of a rank: ranks are claimed when a worker joins. A file that
others could read or write is rejected, and so is a name that could leave the directory.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from luwu.base.errors import ConfigError
from luwu.base.foreign import open_file
from luwu.base.json_file import read_json, write_json
from luwu.base.parsers import one_of

ALLOWED: Final = "allowed.json"
SECRET_SUFFIX: Final = ".secret"
SCHEMA: Final = 1
KEY_BYTES: Final = 32
KEY_HEX_CHARS: Final = 2 * KEY_BYTES
ROLES: Final = ("worker", "reader", "switch", "node")
ALLOWED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Limit of the list, which is read by a thread that must answer in time."""

key_role: Final = one_of(*ROLES)
"""A role that a key can have. Raises ConfigError."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HEX = re.compile(r"[0-9a-f]{64}")


class SecretKey:
    """A secret key; printing, logging, copying or storing it by accident does not reveal it."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, got {len(raw)}")
        self._raw = raw

    def reveal(self) -> bytes:
        """The bytes, for the socket that needs them."""
        return self._raw

    def __repr__(self) -> str:
        return "SecretKey(redacted)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not stored")


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a connection's key."""

    name: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnKey:
    """The key pair of a process, and the file that holds it."""

    directory: Path
    name: str
    secret: SecretKey


def key_text(raw: bytes) -> str:
    """A public key as files and endpoints have it."""
    return raw.hex()


def parse_key(text: str, where: str) -> bytes:
    """A public key. Raises ConfigError."""
    if not _HEX.fullmatch(text):
        raise ConfigError(
            f"{where}: {len(text)} characters are not a public key, {KEY_HEX_CHARS} of 0-9 and a-f "
            "are; copy it whole, as luwu keys list or luwu up printed it"
        )
    return bytes.fromhex(text)


def check_name(name: str) -> str:
    """A name that can be a file's. Raises ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"key_name: {name!r:.80} is not a valid name of a key; use 1 to 63 letters, digits, -, "
            "_ and ., beginning with a letter or digit"
        )
    return name


def worker_name(pattern: str | None, *, rank: int, local_rank: int) -> str:
    """The key's name of one worker; `{rank}` and `{local_rank}` in a pattern are filled in."""
    text = pattern or "worker-{rank}"
    return check_name(text.replace("{rank}", str(rank)).replace("{local_rank}", str(local_rank)))


# ---------------------------------------------------------------------- reading


def read_secret(directory: Path, name: str) -> OwnKey:
    """The key of a name. Raises ConfigError where it is not there, or not a secret."""
    check_directory(directory)
    file = directory / f"{check_name(name)}{SECRET_SUFFIX}"
    try:
        descriptor = open_file(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise ConfigError(
            f"{directory} has no key {name!r} ({file.name}); copy it here, make one with luwu keys "
            f"add {name} --keys {directory}, or say which to use with --key-name",
            code="E210",
        ) from None
    except OSError as exc:
        raise ConfigError(f"cannot read the key {file}: {exc.strerror}") from exc
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as opened:
        _check_private(os.fstat(opened.fileno()), file, "0600")
        text = opened.read(KEY_HEX_CHARS + 2).strip()
    if not _HEX.fullmatch(text):
        raise ConfigError(
            f"{file} contains no key; replace it with luwu keys revoke and add", code="E210"
        )
    return OwnKey(directory=directory, name=name, secret=SecretKey(bytes.fromhex(text)))


def read_allowed(directory: Path) -> dict[bytes, Identity]:
    """Identities that may connect, by public key. Raises ConfigError if the list is unreadable."""
    file = directory / ALLOWED
    try:
        found = file.lstat()
    except FileNotFoundError:
        raise ConfigError(
            f"{directory} has no {ALLOWED}, so no process may connect; luwu keys init "
            f"--keys {directory} creates one",
            code="E210",
        ) from None
    _check_private(found, file, "0600")
    if found.st_size > ALLOWED_BYTES_MAX:
        raise ConfigError(f"{file} has {found.st_size} bytes, at most {ALLOWED_BYTES_MAX} are read")
    document = read_json(file) or {}
    rows = document.get("keys")
    if document.get("schema") != SCHEMA or not isinstance(rows, list):
        raise ConfigError(f"{file} was not written by this version of luwu keys")
    allowed: dict[bytes, Identity] = {}
    names: set[str] = set()
    for row in rows:
        if not isinstance(row, dict) or row.keys() != {"name", "role", "key"}:
            raise ConfigError(f"{file}: {row!r:.80} is not a row: name, role and key were expected")
        if not all(isinstance(each, str) for each in row.values()):
            raise ConfigError(f"{file}: name, role and key of {row['name']!r:.80} must be texts")
        identity = Identity(check_name(row["name"]), key_role(row["role"], "--role"))
        key = parse_key(row["key"], f"{file}: {identity.name}")
        if key in allowed or identity.name in names:
            raise ConfigError(f"{file}: {identity.name} or its key is listed twice; remove one")
        allowed[key] = identity
        names.add(identity.name)
    return allowed


def check_directory(directory: Path) -> None:
    """Raises ConfigError unless this is a directory that is ours alone."""
    try:
        found = directory.stat()
    except OSError as exc:
        raise ConfigError(
            f"keys: cannot open {directory}: {exc.strerror}; luwu keys init --keys {directory} "
            "makes it"
        ) from exc
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"keys: {directory} is not a directory")
    _check_private(found, directory, "0700")


def _check_private(found: os.stat_result, path: Path, mode: str) -> None:
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{path} belongs to user {found.st_uid}, this process to {os.geteuid()}; keys are "
            "read by their owner alone",
            code="E210",
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, so others may have read it; "
            f"chmod {mode} it, and make new keys if this machine has other users",
            code="E210",
        )


# ---------------------------------------------------------------------- writing


def make_directory(directory: Path) -> None:
    """A new directory for keys; one that is there must be ours alone. Raises ConfigError."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"keys: cannot make {directory}: {exc.strerror}") from exc
    check_directory(directory)


def write_secret(directory: Path, name: str, secret: SecretKey) -> None:
    """Write the key of a name, which must not be there. Raises ConfigError."""
    file = directory / f"{check_name(name)}{SECRET_SUFFIX}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(file, flags, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{file} is there already; luwu keys revoke {name} first, or choose another name"
        ) from None
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.write(secret.reveal().hex() + "\n")


def remove_secret(directory: Path, name: str) -> None:
    """Remove the secret file of a name, if it is here."""
    (directory / f"{check_name(name)}{SECRET_SUFFIX}").unlink(missing_ok=True)


def write_allowed(directory: Path, allowed: Mapping[bytes, Identity]) -> None:
    """Replace the list, whole or not at all."""
    rows = [
        {"name": identity.name, "role": identity.role, "key": key_text(key)}
        for key, identity in allowed.items()
    ]
    rows.sort(key=lambda row: (ROLES.index(row["role"]), row["name"]))
    write_json(directory / ALLOWED, {"schema": SCHEMA, "keys": rows}, mode=0o600)
