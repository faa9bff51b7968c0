"""A lock on a directory, for one writer at a time; it ends with the process that holds it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from luwu.base.errors import ConfigError


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory; waits for who holds it. Raises ConfigError."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise ConfigError(f"cannot open {directory}: {exc.strerror}") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
