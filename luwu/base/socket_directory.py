"""Short private directories for sockets, and the end of those that were killed."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from luwu.base.clock import unix_ns
from luwu.base.errors import ConfigError

PREFIX: Final = "luwu-run-"
"""Begins the name of a run's directory."""
PARENT_BYTES_MAX: Final = 60
"""A socket's whole path must stay under 108 bytes."""
YOUNG_NS: Final = 60 * 10**9


def private_directory(
    prefix: str = PREFIX, *, parent_bytes_max: int = PARENT_BYTES_MAX, young_ns: int = YOUNG_NS
) -> Path:
    """A new directory that only this user may enter. `young_ns`: see `sweep`."""
    parent = _parent(parent_bytes_max)
    sweep(parent, prefix, young_ns=young_ns)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))  # mode 0700


def shared_endpoint(name: str) -> str:
    """The endpoint of a socket that processes of this user find by its name."""
    return f"shm://{_shared(name)}/w"


def shared_directory(name: str) -> Path:
    """The directory of that socket, made if it is not there; `sweep` removes it when nothing
    answers there, as of a process 0, which there never is.

    Raises ConfigError if it is another user's.
    """
    directory = _shared(name)
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.stat(follow_symlinks=False)
    if found.st_uid != os.getuid() or found.st_mode & 0o77 or not stat.S_ISDIR(found.st_mode):
        raise ConfigError(
            f"{directory} is not a directory that only this user may enter; remove it, or set "
            "XDG_RUNTIME_DIR"
        )
    os.utime(directory)  # young, for `sweep`
    return directory


def remove_directory(directory: Path) -> None:
    """Remove a directory of sockets; a shared one only if no later start listens there."""
    is_shared = directory.name.startswith(f"{PREFIX}0-")
    if not (is_shared and any(map(answers, directory.glob("*")))):
        shutil.rmtree(directory, ignore_errors=True)


def _shared(name: str) -> Path:
    return _parent(PARENT_BYTES_MAX) / f"{PREFIX}0-{name}"


def _parent(bytes_max: int) -> Path:
    parent = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
    if not os.access(parent, os.W_OK | os.X_OK) or len(os.fsencode(parent)) > bytes_max:
        return Path("/tmp")
    return parent


def sweep(parent: Path, prefix: str = PREFIX, *, young_ns: int = YOUNG_NS) -> None:
    """Remove our directories of processes that are gone, where no socket answers any more: I8 holds
    from the next start on. One that is younger than `young_ns`, or just made and empty, stays."""
    for directory in parent.glob(f"{prefix}*-*"):
        pid_text = directory.name.removeprefix(prefix).partition("-")[0]
        try:
            if directory.stat().st_uid != os.getuid() or Path(f"/proc/{pid_text}").exists():
                continue
            # Another container may share the directory and not the process numbers, and may have
            # made this one just now.
            age_ns = unix_ns() - directory.stat().st_mtime_ns
            paths = list(directory.iterdir())
        except OSError:
            continue
        is_young = age_ns < (young_ns if paths else YOUNG_NS)
        if not is_young and not any(answers(path) for path in paths):
            shutil.rmtree(directory, ignore_errors=True)


def answers(path: Path) -> bool:
    """True if a process listens at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)
