"""A short private directory for the sockets of a run, and the end of those that were killed."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Final

from luwu.base.clock import unix_ns

PREFIX: Final = "luwu-run-"
PARENT_BYTES_MAX: Final = 60
"""A socket's whole path must stay under 108 bytes."""
YOUNG_NS: Final = 60 * 10**9


def private_directory() -> Path:
    """A new directory that only this user may enter."""
    parent = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
    if not os.access(parent, os.W_OK | os.X_OK) or len(os.fsencode(parent)) > PARENT_BYTES_MAX:
        parent = Path("/tmp")
    sweep(parent)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))  # mode 0700


def sweep(parent: Path) -> None:
    """Remove our directories of launchers that are gone, where no socket answers any more."""
    for directory in parent.glob(f"{PREFIX}*-*"):
        pid_text = directory.name.removeprefix(PREFIX).partition("-")[0]
        try:
            if directory.stat().st_uid != os.getuid() or Path(f"/proc/{pid_text}").exists():
                continue
            # Another container may share the directory and not the process numbers, and may have
            # made this one just now.
            is_young = unix_ns() - directory.stat().st_mtime_ns < YOUNG_NS
            paths = list(directory.iterdir())
        except OSError:
            continue
        if not is_young and not any(_answers(path) for path in paths):
            shutil.rmtree(directory, ignore_errors=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)
