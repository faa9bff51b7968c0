"""Directories: made as a whole or not at all, locked for one writer, on a disk or in memory.

A directory that is made is filled beside its place, as `.NAME.making/new`, flushed, then renamed.
An error, or a signal that stops us, leaves nothing; a maker that was killed leaves `.NAME.making`,
which the next one removes. A lock ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError, StoreFullError, refusal
from luwu.base.failpoints import failpoint
from luwu.base.quantities import format_bytes

RUNS_DIRECTORY: Final = Path("luwu-runs")
"""The directory of all runs without a name of their own."""


@contextmanager
def making_directory(path: Path) -> Iterator[Path]:
    """Yields a path that does not exist; the directory made there becomes `path` at the end.

    The caller flushes the files that it writes. Failpoint: making.before_rename.
    Raises: ConfigError if `path` exists, cannot be made or another process makes it;
    StoreFullError; StateError if the disk fails.
    """
    check_absent(path)
    building = path.parent / f".{path.name}.making"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = lock_building(building)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be made: {exc}; name another directory") from exc
    try:
        new = building / "new"
        if new.exists():
            shutil.rmtree(new)
        yield new
        flush_directory(new)
        failpoint("making.before_rename")
        check_absent(path)
        os.rename(new, path)
        try:
            flush_directory(path.parent)
        except OSError:
            os.rename(path, new)  # a name that may be gone after a power cut is none
            raise
    except OSError as exc:
        what = f"{path} could not be written"
        raise refusal(what, exc, "Nothing was left behind. ", then="try again") from exc
    finally:
        shutil.rmtree(building, ignore_errors=True)
        os.close(fd)


def check_absent(path: Path) -> None:
    """Raises ConfigError if there is something at `path`."""
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists; name a directory that does not, or remove it first")


def check_space(path: Path, needed: int) -> None:
    """Raises StoreFullError unless the disk that is to hold `path` has so many bytes free."""
    free = free_bytes(path)
    if free < needed:
        raise StoreFullError(
            f"{path}: {format_bytes(needed)} are needed, {format_bytes(free)} are free on the disk "
            f"of {_existing(path)}. Free some space or name another disk."
        )


def free_bytes(path: Path) -> int:
    """Bytes that are free on the disk that holds `path`, or is to hold it."""
    return shutil.disk_usage(_existing(path)).free


def _existing(path: Path) -> Path:
    """The path itself, or the directory above it that exists."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return place


def lock_building(building: Path) -> int:
    """Make the directory to build in, or take it over from a maker that died.

    Returns a descriptor that holds it until it is closed. Raises ConfigError if another process
    holds it.
    """
    building.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(building, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(building).st_ino == os.fstat(fd).st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    raise ConfigError(
        f"{building} belongs to another process, which is making this directory just now; "
        "wait for it, or name another directory"
    )


def flush_directory(path: Path) -> None:
    """Flush a directory: files made, renamed or removed in `path` are so on disk from here on."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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


def memory_kind(directory: Path) -> str | None:
    """tmpfs or ramfs where a directory is, or will be made, in memory; else None."""
    device = _existing(directory).stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, rest = line.partition(" - ")
        if mount.split()[2] == number:
            return kind if (kind := rest.split()[0]) in ("tmpfs", "ramfs") else None
    return None
