"""A block device in memory below the real page store: it forgets, tears, loses and lies.

The store's own code runs on it unchanged: `BlockFile` calls `os`, and while `simulated()` is on,
the `os` that it sees answers for files of a `Device` and hands all other calls on to the real one.

A file has two contents: what a read sees, and what is certain. A write changes the first; a flush
makes the second equal. At a power cut each unsynced block of 4 KiB is, independently, old, new, or
torn between sectors of 512 bytes. A kill of the process loses nothing.

Faults, armed one at a time, strike the next call they fit:

    eio_write, enospc   the write fails; nothing of it is on the device
    eio_flush           the flush fails, and what it was to make certain never will be: a second
                        flush succeeds and does nothing, as on Linux
    lost                a write of a page is acknowledged, and not made
    misdirected         it is made at another block of the same file
    rot                 at once, and below the file system: a bit of a block that was written flips

The last three strike page bodies, or one copy of what is stored twice: what is damaged in both
copies is lost, and no store can promise otherwise. `repair` puts back what should be there, as a
restored backup would; until then, whoever reads the store must find out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from luwu.base import foreign as foreign_module
from luwu.base.errors import ConfigError
from luwu.base.failpoints import failpoint as real_failpoint
from switch_emu.store import FilePageStore, StoreConfig
from switch_emu.store import direct_io as direct_io_module
from switch_emu.store import file as file_module
from switch_emu.store.direct_io import BUFFERED_BY_CHOICE, BlockFile, DirectIo, IoCounter
from switch_emu.store.directory import LOCK_NAME, META_NAME, SIDE_NAMES
from switch_emu.store.geometry import Geometry
from switch_emu.store.manifest import copy_offset, meta_bytes
from switch_emu.store.records import Durability
from switch_emu.store.ring import RING_BYTES, RecordRing
from switch_emu.store.sums import SUMS_NAME, SumShape

BLOCK_BYTES = 4096
SECTOR_BYTES = 512
ROOT = Path("/simulated")
_FIRST_FD = 1 << 30

KINDS = ("eio_write", "enospc", "eio_flush", "lost", "misdirected", "rot")
"""What a device can be told to do wrong."""

Keep = Callable[[], str]
"""What becomes of an unsynced block: `old`, `new` or `torn`."""


class ProcessEnded(BaseException):
    """The process that was inside the store is no more; no handler of errors may see this."""


class DeviceFile:
    """One file: what a read sees, what is certain, and the writes in between, oldest first."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.seen = bytearray(size)
        self.certain = bytearray(size)
        self.pending: list[tuple[int, bytes]] = []

    def write(self, offset: int, data: bytes) -> None:
        self.seen[offset : offset + len(data)] = data
        self.pending.append((offset, data))

    def flush(self) -> None:
        for offset, data in self.pending:
            self.certain[offset : offset + len(data)] = data
        self.pending.clear()

    def copy(self) -> DeviceFile:
        other = DeviceFile(self.name, 0)
        other.seen, other.certain = bytearray(self.seen), bytearray(self.certain)
        other.pending = list(self.pending)
        return other

    def blocks(self) -> list[tuple[int, bytes]]:
        """The unsynced writes cut at blocks: what a power cut chooses from."""
        return [
            (offset + start, data[start : start + BLOCK_BYTES])
            for offset, data in self.pending
            for start in range(0, len(data), BLOCK_BYTES)
        ]

    def put_right(self, offset: int, block: bytes) -> None:
        """Make a block what it should be, whatever is still to come to it."""
        self.certain[offset : offset + len(block)] = block
        self.seen[offset : offset + len(block)] = block
        for number, (start, data) in enumerate(self.pending):
            at = offset - start
            if 0 <= at < len(data):
                right = data[:at] + block + data[at + len(block) :]
                self.pending[number] = (start, right)

    def drop_cache(self) -> None:
        """What is clean is read from the device again."""
        self.seen[:] = self.certain
        for offset, data in self.pending:
            self.seen[offset : offset + len(data)] = data


class Device:
    """The files of one store on one simulated device."""

    def __init__(self, name: str, random: Random) -> None:
        self.path = ROOT / name
        self.random = random
        self.files: dict[str, DeviceFile] = {}
        self.config: StoreConfig | None = None
        self.armed: list[str] = []
        self.struck: list[str] = []
        """Faults that came about since the last repair."""
        self.die_after: int | None = None
        """Failpoints that a process still passes before it ends inside the store."""
        self.at_failpoint: Callable[[str], None] | None = None
        """Called at every failpoint of the store, by tests that take images; ..."""
        self.at_flush: Callable[[str], None] | None = None
        """... and this one before every flush, with the name of the file."""
        self.right: dict[tuple[str, int], bytes] = {}
        """(file, offset) -> the block that should be there."""
        _DEVICES[str(self.path)] = self

    def forget(self) -> None:
        """Take the device away."""
        _DEVICES.pop(str(self.path), None)

    def make(self, config: StoreConfig) -> None:
        """Format it, as `create_directory` does; whole or not at all is that one's business, and so
        what is armed waits for the store."""
        armed, self.armed = self.armed, []
        geometry = Geometry(config)
        sizes = dict.fromkeys(SIDE_NAMES, geometry.side_bytes)
        sizes |= {META_NAME: meta_bytes(geometry.table), LOCK_NAME: RING_BYTES}
        self.files = {name: DeviceFile(name, size) for name, size in sizes.items()}
        self.config = config
        records: list[tuple[str, dict[str, Any]]] = [
            (META_NAME, {"decided": None, "prepared": None}),
            (LOCK_NAME, {"generation": 0, "attempt": 0}),
        ]
        for name, values in records:
            file = BlockFile(self.path / name, BUFFERED_BY_CHOICE, IoCounter(), synced=True)
            RecordRing(file, config.store_uuid).write(values)
            file.flush()
            file.close()
        self.armed = armed

    def make_log(self, shape: SumShape, store_uuid: str) -> None:
        """Add an empty log of sums."""
        file = self.files[SUMS_NAME] = DeviceFile(SUMS_NAME, shape.file_bytes)
        file.write(0, shape.head(store_uuid))
        file.flush()

    def open(self, durability: Durability = "step") -> FilePageStore:
        """The real store, on this device."""
        return FilePageStore.open(self.path, durability=durability)

    # ---------------------------------------------------------------------- what a crash leaves

    def power_cut(self, keep: Keep | None = None) -> None:
        """Every unsynced block is old, new or torn; nobody may have the store open."""
        keep = keep or (lambda: self.random.choice(("old", "new", "torn")))
        for file in self.files.values():
            for offset, block in file.blocks():
                file.certain[offset : offset + len(block)] = self._left_of(
                    keep(), bytes(file.certain[offset : offset + len(block)]), block
                )
            file.pending.clear()
            file.seen[:] = file.certain

    def image(self, name: str, keep: Keep | None = None) -> Device:
        """Another device, as this one would be after a power cut now."""
        other = Device(name, self.random)
        other.config = self.config
        for file in self.files.values():
            other.files[file.name] = file.copy()
        other.power_cut(keep)
        return other

    def _left_of(self, fate: str, old: bytes, new: bytes) -> bytes:
        if fate == "torn":
            return self.torn(old, new)
        return new if fate == "new" else old

    def torn(self, old: bytes, new: bytes) -> bytes:
        """A block of which each sector is old or new, by chance."""
        sectors = range(0, len(new), SECTOR_BYTES)
        chosen = (new if self.random.random() < 0.5 else old for _ in sectors)
        return b"".join(
            each[at : at + SECTOR_BYTES] for at, each in zip(sectors, chosen, strict=True)
        )

    # ---------------------------------------------------------------------- faults

    def arm(self, kind: str) -> None:
        """Let the next call that fits fail in this way; rot sets in at once."""
        assert kind in KINDS, kind
        if kind == "rot":
            self._rot()
        else:
            self.armed.append(kind)

    def repair(self) -> None:
        """Put back what should be there; nothing is armed any more."""
        for (name, offset), block in self.right.items():
            self.files[name].put_right(offset, block)
        self.right.clear()
        self.armed.clear()
        self.struck.clear()
        self.die_after = None

    def _strikes(self, *kinds: str) -> str:
        """The first armed fault among these; it is spent."""
        for kind in self.armed:
            if kind in kinds:
                self.armed.remove(kind)
                self.struck.append(kind)
                return kind
        return ""

    def twins(self) -> list[tuple[str, int]]:
        """(file, offset) of the first block of everything that is stored twice, and of its like."""
        rings = [
            (name, at)
            for name in (META_NAME, LOCK_NAME)
            for at in range(0, RING_BYTES, BLOCK_BYTES)
        ]
        assert self.config is not None
        table = Geometry(self.config).table
        return rings + [
            (META_NAME, copy_offset(table, place, copy)) for place in range(2) for copy in range(2)
        ]

    def _may_lie(self, name: str, offset: int) -> bool:
        """Whether a block has its like elsewhere, or is a page: one that may be damaged."""
        if name in SIDE_NAMES:
            return True
        if name == SUMS_NAME:
            return offset > 0
        if offset < RING_BYTES:
            return offset // BLOCK_BYTES % 2 == 0
        assert self.config is not None
        table = Geometry(self.config).table
        firsts = [copy_offset(table, place, 0) for place in range(2)]
        seconds = [copy_offset(table, place, 1) for place in range(2)]
        return any(a <= offset < b for a, b in zip(firsts, seconds, strict=True))

    def _should_be(self, file: DeviceFile, offset: int, block: bytes) -> None:
        self.right.setdefault((file.name, offset), block)

    def _rot(self) -> None:
        areas: dict[tuple[str, bool], list[int]] = {}
        for file in self.files.values():
            for offset in range(0, len(file.certain), BLOCK_BYTES):
                is_written = any(file.seen[offset : offset + BLOCK_BYTES])
                if is_written and self._may_lie(file.name, offset):
                    is_ring = file.name in (META_NAME, LOCK_NAME) and offset < RING_BYTES
                    areas.setdefault((file.name, is_ring), []).append(offset)
        if not areas:
            return
        area = self.random.choice(list(areas))  # else nearly all of it would strike pages
        file, offset = self.files[area[0]], self.random.choice(areas[area])
        self._should_be(file, offset, bytes(file.seen[offset : offset + BLOCK_BYTES]))
        at, bit = offset + self.random.randrange(BLOCK_BYTES), 1 << self.random.randrange(8)
        file.certain[at] ^= bit
        file.seen[at] = file.seen[at] ^ bit
        self.struck.append("rot")

    # ---------------------------------------------------------------------- calls of the system

    def write(self, file: DeviceFile, offset: int, data: bytes) -> None:
        """One write of the store."""
        if kind := self._strikes("eio_write", "enospc"):
            code = errno.EIO if kind == "eio_write" else errno.ENOSPC
            raise OSError(code, os.strerror(code), file.name)
        lie = self._strikes("lost", "misdirected") if self._may_lie(file.name, offset) else ""
        blocks = range(offset, offset + len(data), BLOCK_BYTES)
        for at in blocks:
            self.right.pop((file.name, at), None)
        if not lie:
            file.write(offset, data)
            return
        for at in blocks:
            self._should_be(file, at, data[at - offset : at - offset + BLOCK_BYTES])
        if lie == "misdirected":
            self._write_elsewhere(file, offset, data)

    def _write_elsewhere(self, file: DeviceFile, offset: int, data: bytes) -> None:
        """To some other blocks of the same file that may be damaged."""
        places = [
            at
            for at in range(0, len(file.seen) - len(data) + 1, BLOCK_BYTES)
            if abs(at - offset) >= len(data)
            and all(
                self._may_lie(file.name, at + start) for start in range(0, len(data), BLOCK_BYTES)
            )
        ]
        if not places:
            return
        at = self.random.choice(places)
        for start in range(0, len(data), BLOCK_BYTES):
            there = bytes(file.seen[at + start : at + start + BLOCK_BYTES])
            self._should_be(file, at + start, there)
        file.write(at, data)

    def flush(self, file: DeviceFile) -> None:
        """One flush of the store."""
        if self.at_flush is not None:
            self.at_flush(file.name)
        if self._strikes("eio_flush"):
            file.pending.clear()  # marked clean, and never written
            raise OSError(errno.EIO, os.strerror(errno.EIO), file.name)
        file.flush()

    def passes(self, place: str) -> None:
        """A failpoint of the store."""
        if self.at_failpoint is not None:
            self.at_failpoint(place)
        if self.die_after is not None:
            self.die_after -= 1
            if self.die_after < 0:
                self.die_after = None
                raise ProcessEnded(place)


_DEVICES: dict[str, Device] = {}
_OPEN: dict[int, tuple[Device, DeviceFile]] = {}
_BUSY: list[Device] = []
"""The device whose store is being called, innermost last."""


@contextlib.contextmanager
def busy(device: Device) -> Iterator[None]:
    """Failpoints that are passed in here are those of a process on this device."""
    _BUSY.append(device)
    try:
        yield
    finally:
        _BUSY.pop()


def _device_of(path: Any) -> Device | None:
    return _DEVICES.get(os.path.dirname(os.fspath(path)))


class _SimulatedOs:
    """What `BlockFile` calls; anything else, and any other file, is the real system's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @staticmethod
    def open(path: Any, flags: int, mode: int = 0o777) -> int:
        device = _device_of(path)
        if device is None:
            return os.open(path, flags, mode)
        fd = max(_OPEN, default=_FIRST_FD) + 1
        _OPEN[fd] = (device, device.files[os.path.basename(os.fspath(path))])
        return fd

    @staticmethod
    def close(fd: int) -> None:
        if _OPEN.pop(fd, None) is None:
            os.close(fd)

    @staticmethod
    def fstat(fd: int) -> Any:
        if fd not in _OPEN:
            return os.fstat(fd)
        return SimpleNamespace(st_size=len(_OPEN[fd][1].seen), st_mode=stat.S_IFREG)

    @staticmethod
    def set_blocking(fd: int, blocking: bool) -> None:
        if fd not in _OPEN:
            os.set_blocking(fd, blocking)

    @staticmethod
    def posix_fadvise(fd: int, offset: int, length: int, advice: int) -> None:
        if fd not in _OPEN:
            os.posix_fadvise(fd, offset, length, advice)
        elif advice == os.POSIX_FADV_DONTNEED:
            _OPEN[fd][1].drop_cache()

    @staticmethod
    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if fd not in _OPEN:
            return os.preadv(fd, buffers, offset)
        done = 0
        for into in buffers:
            at = offset + done
            found = memoryview(_OPEN[fd][1].seen)[at : at + len(into)]
            into[: len(found)] = found
            done += len(found)
        return done

    @staticmethod
    def pwritev(fd: int, buffers: list[memoryview], offset: int) -> int:
        if fd not in _OPEN:
            return os.pwritev(fd, buffers, offset)
        device, file = _OPEN[fd]
        data = b"".join(buffers)
        device.write(file, offset, data)
        return len(data)

    @staticmethod
    def fdatasync(fd: int) -> None:
        if fd not in _OPEN:
            os.fdatasync(fd)
            return
        device, file = _OPEN[fd]
        device.flush(file)


def _elsewhere(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    """What the store finds out by the path: of a device by `ours`, else as it really does."""
    real = getattr(file_module, name)

    def either(path: Path, *args: Any, **keys: Any) -> Any:
        device = _DEVICES.get(str(path)) or _device_of(path)
        return real(path, *args, **keys) if device is None else ours(device, *args, **keys)

    return either


def _config_of(device: Device) -> StoreConfig:
    if device.config is None:
        raise ConfigError(f"{device.path} holds no store; make one first")
    return device.config


def _lock(device: Device, *, read_only: bool = False) -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _no_direct_io(device: Device) -> DirectIo:
    return BUFFERED_BY_CHOICE


def _failpoint(place: str) -> None:
    if _BUSY:
        _BUSY[-1].passes(place)
    else:
        real_failpoint(place)


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """The page store finds devices at their paths; may be nested."""
    if isinstance(direct_io_module.os, _SimulatedOs):
        yield
        return
    replaced = {
        "read_config": _elsewhere("read_config", _config_of),
        "lock_directory": _elsewhere("lock_directory", _lock),
        "check_sizes": _elsewhere("check_sizes", lambda device, geometry: None),
        "probe_direct_io": _elsewhere("probe_direct_io", _no_direct_io),
        "has_log": _elsewhere("has_log", lambda device: SUMS_NAME in device.files),
        "make_log": _elsewhere("make_log", Device.make_log),
        "failpoint": _failpoint,
    }
    with (
        mock.patch.object(direct_io_module, "os", _SimulatedOs()),
        mock.patch.object(foreign_module, "os", _SimulatedOs()),
        mock.patch.multiple(file_module, **replaced),
    ):
        yield
