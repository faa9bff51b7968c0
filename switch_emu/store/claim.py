"""The directory of a state that is not made yet, held by the one node that may make it.

A node that finds no state listens until its workers say what to make. Of two on one directory the
later would be refused only then, so the first one holds it from its start on, by a lock on the file
CLAIM there. The file goes when the store takes the directory's place, or the node ends; one that
was left behind by a kill is locked by nobody and taken over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from typing import Final

from luwu.base.closing import Closing
from luwu.base.errors import ConfigError
from luwu.base.refusals import refusing

CLAIM_NAME: Final = "CLAIM"


class Claim(Closing):
    """Holds a directory from `take` until `close`."""

    def __init__(self, state: Path, holder: str = "another command") -> None:
        """`holder`: who we are, for those who come later."""
        self._state, self._file = state, state / CLAIM_NAME
        self._holder = f"{holder} (process {os.getpid()} on {socket.gethostname()})"
        self._fd: int | None = None
        self._has_made = False

    def take(self) -> None:
        """Make the directory, and hold it. Raises ConfigError if it is another's or not empty."""
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
        """Leave the directory empty, for what takes its place."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()
            os.close(self._fd)
            self._fd = None

    def close(self) -> None:
        """Let go; a directory that was made for nothing goes too."""
        if self._fd is not None:
            self.release()
            if self._has_made:
                with contextlib.suppress(OSError):  # somebody put something there
                    self._state.rmdir()
