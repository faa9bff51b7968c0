"""The directory of a store: made as a whole or not at all, locked by one process.

    CONFIG      the configuration; written once
    LOCK        flock of its users: one node, or readers; generation, attempt (a ring)
    side0.dat   page bodies, first side          geometry.py
    side1.dat   page bodies, second side
    meta.dat    superblock and manifests         manifest.py

A store is built in a directory beside it, flushed, then renamed. All space is allocated then, so
a step neither grows a file nor runs out of disk (on copy-on-write file systems it may: keep some
space free there). A kill leaves `.NAME.creating`, which is no store; the next attempt removes it.

A node without a state listens until its workers send a description. A second node on the same
directory would fail only then, so the first one locks a file CLAIM there from its start on. The
file is deleted when the store replaces the directory, or the node ends; one left behind by a kill
is not locked and is taken over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from luwu.base.closing import Closing
from luwu.base.directories import check_space, flush_directory, lock_building
from luwu.base.errors import ConfigError, PageCorruptError, StateError, refusal, refusing
from luwu.base.failpoints import failpoint
from luwu.base.foreign import MALFORMED, counted, natural, open_file, read_file, taking, typed
from luwu.base.quantities import format_bytes
from switch_emu.store.config import StoreConfig, decode_config, encode_config
from switch_emu.store.direct_io import BUFFERED_BY_CHOICE, BlockFile, IoCounter
from switch_emu.store.geometry import Geometry
from switch_emu.store.manifest import meta_bytes
from switch_emu.store.ring import RING_BYTES, RecordRing, read_record

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
        """Empty the directory, for the store that replaces it. Raises OSError."""
        if self._fd is not None:
            self._file.unlink(missing_ok=True)  # if that fails, `close` tries again
            os.close(self._fd)
            self._fd = None

    def close(self) -> None:
        """Release the claim; delete the directory if `take` made it."""
        if self._fd is not None:
            with contextlib.suppress(OSError):  # a file that is left behind is not locked
                self._file.unlink()
            os.close(self._fd)
            self._fd = None
            if self._has_made:
                with contextlib.suppress(OSError):  # no longer empty
                    self._state.rmdir()


CONFIG_NAME = "CONFIG"
LOCK_NAME = "LOCK"
META_NAME = "meta.dat"
SIDE_NAMES = ("side0.dat", "side1.dat")


def store_disk_bytes(config: StoreConfig) -> int:
    """Bytes of a store on disk: both sides, the manifests, the rest."""
    geometry = Geometry(config)
    files = 2 * geometry.side_bytes + meta_bytes(geometry.table) + RING_BYTES
    return files + len(encode_config(config))


def create_directory(path: Path, config: StoreConfig, claim: Claim | None = None) -> None:
    """Make an empty store at `path`; `claim`: our claim on it.

    Raises: ConfigError if something is there; StoreFullError if the disk is too small.
    """
    if claim is None and (path / CLAIM_NAME).exists():
        with Claim(path) as left_behind:
            left_behind.take()  # and gone
    held = set() if claim is None else {CLAIM_NAME}
    if path.exists() and (not path.is_dir() or {each.name for each in path.iterdir()} - held):
        raise ConfigError(
            f"{path} exists and is not empty; give it with --resume if it is the state of this "
            "job, or name another directory with --state",
            code="E203",
        )
    check_space(path, store_disk_bytes(config))
    building = path.parent / f".{path.name}.creating"
    is_there = False
    with refusing(f"{path} could not be made"):
        path.parent.mkdir(parents=True, exist_ok=True)
        building_fd = lock_building(building)
    try:
        for leftover in building.iterdir():
            leftover.unlink()
        failpoint("store.create.before_files")
        _write_files(building, config)
        os.fsync(building_fd)
        failpoint("store.create.before_rename")
        if claim is not None:
            claim.release()
        os.rename(building, path)
        is_there = True
        failpoint("store.create.after_rename")
        flush_directory(path.parent)
    except BaseException as exc:
        # After a power cut its name may be gone; it is still empty, so delete it.
        shutil.rmtree(path if is_there else building, ignore_errors=True)
        if isinstance(exc, OSError):
            needed = format_bytes(store_disk_bytes(config))
            what = f"{path}: a store of {needed} could not be made"
            raise refusal(what, exc, "Nothing was left behind. ") from exc
        raise
    finally:
        os.close(building_fd)


def read_config(path: Path) -> StoreConfig:
    """The configuration of the store at `path`. Raises ConfigError if there is no store."""
    file = path / CONFIG_NAME
    try:
        data = read_file(file)
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise ConfigError(f"{path} holds no store: {file.name} is missing; make one first") from exc
    except OSError as exc:
        raise PageCorruptError(f"{file} cannot be read: {exc.strerror}. Restore the store") from exc
    return decode_config(data, place=str(file))


def check_sizes(path: Path, geometry: Geometry) -> None:
    """Raise StateError if a file is missing or has another size than it was made with."""
    sizes = {name: geometry.side_bytes for name in SIDE_NAMES}
    sizes |= {META_NAME: meta_bytes(geometry.table), LOCK_NAME: RING_BYTES}
    for name, expected in sizes.items():
        file = path / name
        found = file.stat().st_size if file.exists() else None
        if found != expected:
            text = "is missing" if found is None else f"has {found} bytes, expected {expected}"
            raise StateError(f"{file} {text}. Restore the store from a checkpoint.")


def lock_directory(path: Path, *, read_only: bool = False) -> int:
    """Lock the store until the descriptor is closed. Raises ConfigError if it is in use.

    Several readers may share the lock, without a node.
    """
    try:
        fd = open_file(path / LOCK_NAME, os.O_RDONLY if read_only else os.O_RDWR)
    except FileNotFoundError as exc:
        raise ConfigError(f"{path} holds no store: {LOCK_NAME} is missing; make one first") from exc
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        raise PageCorruptError(f"{path / LOCK_NAME}: {exc.strerror}. Restore the store") from exc
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(fd)
        advice = (
            "which may change it at any time. Wait until it has ended, or stop it, and try again."
            if read_only
            else "a second node on one directory. "
            "Stop the other, or give this one a directory of its own."
        )
        raise ConfigError(f"{path} is open in {_holder(path)}: {advice}", code="E204") from exc
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_counters(path: Path) -> dict[str, Any]:
    """What is recorded in LOCK, also of a store that is open. Raises ConfigError, StateError."""
    config = read_config(path)
    with taking(path / LOCK_NAME, PageCorruptError):
        counters = read_record(path / LOCK_NAME, config.store_uuid)
        counts_of(counters)
        return counters


def counts_of(counters: Mapping[str, Any]) -> tuple[int, int, tuple[int, ...]]:
    """Generation, attempt and epoch of what is recorded in LOCK. Raises errors of MALFORMED."""
    number, *others = counters.get("epoch") or [0]
    epoch = (counted(number), *map(natural, others)) if others else ()
    return counted(counters["generation"]), counted(counters["attempt"]), epoch


def _holder(path: Path) -> str:
    """The process that has the store open, according to LOCK."""
    try:
        counters = read_counters(path)
        if counters["host"] == socket.gethostname() and not _is_alive(typed(counters["pid"], int)):
            return "another process, which reads it (luwu export?)"
        return f"process {counters['pid']} on {counters['host']}"
    except (OSError, *MALFORMED, StateError, ConfigError):
        return "another process"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # of another user
    return True


def _write_files(building: Path, config: StoreConfig) -> None:
    geometry = Geometry(config)
    encoded = encode_config(config)
    _new_file(building / CONFIG_NAME, len(encoded), encoded)
    failpoint("store.create.after_config")
    for name in SIDE_NAMES:
        _new_file(building / name, geometry.side_bytes)
    _new_file(building / META_NAME, meta_bytes(geometry.table))
    _new_file(building / LOCK_NAME, RING_BYTES)
    failpoint("store.create.after_allocate")
    for name, values in (
        (META_NAME, {"decided": None, "prepared": None}),
        (LOCK_NAME, {"generation": 0, "attempt": 0}),
    ):
        with BlockFile(building / name, BUFFERED_BY_CHOICE, IoCounter(), synced=True) as file:
            RecordRing(file, config.store_uuid).write(values)
            file.flush()


def _new_file(path: Path, size: int, data: bytes = b"") -> None:
    """A file that has its size, and begins with `data`, on the disk too."""
    with open(path, "xb", opener=_private) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
