"""The claim of one node on a directory whose state is not made yet.

A node without a state listens until its workers send a description. A second node on the same
directory would fail only then, so the first one locks a file CLAIM there from its start on. The
file is deleted when the store replaces the directory, or the node ends; one left behind by a kill
is not locked and is taken over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from typing import Final

from luwu.base.closing import Closing
from luwu.base.errors import ConfigError, refusing

CLAIM_NAME: Final = "CLAIM"


class Claim(Closing):
    """A directory that is held from `take` until `close`."""

    def __init__(self, state: Path, holder: str = "another command") -> None:
        """`holder`: our name, for the error of a second claim."""
        self._state, self._file = state, state / CLAIM_NAME
        self._holder = f"{holder} (process {os.getpid()} on {socket.gethostname()})"
        self._fd: int | None = None
        self._has_made = False

    def take(self) -> None:
        """Make the directory, and hold it. Raises ConfigError if it is claimed or not empty."""
        with refusing(f"{self._state} could not be made"):
            self._has_made = not self._state.exists()
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            others = [path.name for path in self._state.iterdir() if path.name != CLAIM_NAME]
            if others:
                raise ConfigError(
                    f"{self._state} holds {sorted(others)[0]} and no state of ours; name a new or "
                    "an empty directory with --state",
                    code="E203",
                )
            self._fd = self._lock()
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, self._holder.encode(), 0)

    def _lock(self) -> int:
        while True:
            fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._file.exists() and self._file.stat().st_ino == os.fstat(fd).st_ino:
                    return fd
            except BlockingIOError as exc:
                found = os.pread(fd, 200, 0).decode(errors="replace") or "another process"
                os.close(fd)
                raise ConfigError(
                    f"{self._state} is taken by {found}, which waits for its workers. Stop that "
                    "one, or give this one a directory of its own with --state",
                    code="E204",
                ) from exc
            os.close(fd)  # its holder has just ended

    def release(self) -> None:
        """Empty the directory, for the store that replaces it."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()
            os.close(self._fd)
            self._fd = None

    def close(self) -> None:
        """Release the claim; delete the directory if `take` made it."""
        if self._fd is not None:
            self.release()
            if self._has_made:
                with contextlib.suppress(OSError):  # no longer empty
                    self._state.rmdir()
