"""sums.dat: a log of what the last steps updated pages with, so that few pages are written a step.

An update is a function of a page and a sum: with both, what it made can be made again, bit for bit.
So a state that lies in RAM needs its pages on disk only now and then. There are k *slots*, one a
step, in turn; each has a place for the sum of every trained page:

    | head | header 0 .. k - 1 | slot 0 .. k - 1 |

A page has its turn in one slot of the k: then it is written whole, to its other side, instead of
its sum. So what its slot held is needed by no page when it is used again, and no page is further
behind than k - 1 sums. A page that had no sum since it was written whole is not written.

The *header* of a slot has the record of its step, which step was logged before it and, for each
page, the type of its sum, a checksum, and a note of the caller's. It is written when the step is
prepared, before the flush; a version names the newest step that is in the log (`SUMS_KEY`). The log
itself is never read while a job runs.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from luwu.base.closing import Closing
from luwu.base.directories import check_space, flush_directory
from luwu.base.dtypes import DTYPES
from luwu.base.errors import PageCorruptError, StateError
from luwu.base.foreign import MALFORMED, natural, parse_json
from luwu.base.limits import MIB
from switch_emu.store.config import StoreConfig
from switch_emu.store.direct_io import BLOCK_BYTES, BlockFile, aligned_buffer
from switch_emu.store.manifest import STEP_RECORD_BYTES_MAX, step_of, step_values
from switch_emu.store.records import SUMS_KEY, DecidedStep

SUMS_NAME: Final = "sums.dat"

Redo = Callable[[int, memoryview, memoryview, str, DecidedStep, bytes], None]
"""(page, record, sum, its dtype, step, note): makes the update of a step again, in the record."""

SLOTS_MAX: Final = 64
_NOTE_BYTES_MAX: Final = 1024
_SMALL_BYTES: Final = MIB // 4
_WAITING_BYTES_MAX: Final = 4 * MIB
"""Sums that are small wait in RAM until their step is prepared, up to so many bytes of them: then
neighbours are written together."""
_SUM_BYTES: Final = 4
_ZEROS: Final = "zeros"
_DTYPES: Final = ("", "float32", "bfloat16", "float16", _ZEROS)
"""Types of sums, by their number in a header; the first means that there is none, the last that
nothing is written."""
_MAGIC: Final = b"LUWUSUM1"
_HEAD: Final = struct.Struct("<8s16sqqQ")  # magic, store uuid, step logged before it, step bytes
_DIGEST_BYTES: Final = 16

Name = tuple[int, int]
"""Version and attempt of a step: a version that was given up may be in another slot."""
_NONE: Final = (-1, -1)


def name_of(step: DecidedStep) -> Name:
    """The newest step in the log that this one's version needs."""
    version, attempt = map(int, step.extra.get(SUMS_KEY, "-1 -1").split())
    return version, attempt


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """A step whose sums are in the log."""

    step: DecidedStep
    slot: int
    before: Name
    """The step that was logged before it; -1: none that is needed."""
    rows: np.ndarray


class SumShape:
    """Sizes and places in a log."""

    def __init__(self, config: StoreConfig, slots_count: int, note_bytes: int) -> None:
        """`note_bytes`: the most that a note takes."""
        self.slots_count, self.note_bytes = slots_count, note_bytes
        self.row = np.dtype(
            [("dtype", "u1"), ("digest", f"V{_DIGEST_BYTES}"), ("note", f"V{note_bytes}")]
        )
        fixed = _HEAD.size + STEP_RECORD_BYTES_MAX + _DIGEST_BYTES
        self.header_bytes = _whole(fixed + config.page_count * self.row.itemsize)
        trained = [len(config.kind(page).fields) > 1 for page in range(config.page_count)]
        sizes = (
            _whole(_SUM_BYTES * elems * is_trained)
            for elems, is_trained in zip(config.page_elems, trained, strict=True)
        )
        self.places = [0, *accumulate(sizes)]
        """Where the sum of each page begins in a slot; last, the bytes of a slot."""
        weights = [0, *accumulate(config.record_bytes)]
        self.turns = [
            min(slots_count * weights[page] // max(1, weights[-1]), slots_count - 1)
            for page in range(config.page_count)
        ]
        """The slot in which each page is written whole."""

    def head(self, store_uuid: str) -> bytes:
        """The bytes that the file begins with."""
        said = {"slots": self.slots_count, "note_bytes": self.note_bytes}
        return json.dumps({"store_uuid": store_uuid} | said).encode()

    def is_like(self, other: SumShape) -> bool:
        """True if a log of the one shape is one of the other."""
        return (self.slots_count, self.note_bytes) == (other.slots_count, other.note_bytes)

    @property
    def memory_bytes(self) -> int:
        """Bytes in RAM of the rows of all slots, of those being written and of waiting sums."""
        rows_bytes = (self.slots_count + 1) * (len(self.places) - 1) * self.row.itemsize
        return rows_bytes + min(self.places[-1], _WAITING_BYTES_MAX)

    @property
    def file_bytes(self) -> int:
        """Size of sums.dat."""
        return BLOCK_BYTES + self.slots_count * (self.header_bytes + self.places[-1])

    def has_place(self, page: int) -> bool:
        """True if the page is trained: one with a place for its sum."""
        return self.places[page] < self.places[page + 1]

    def header_offset(self, slot: int) -> int:
        """Offset of a header."""
        return BLOCK_BYTES + slot * self.header_bytes

    def offset(self, slot: int, page: int) -> int:
        """Offset of the sum of a page."""
        headers = BLOCK_BYTES + self.slots_count * self.header_bytes
        return headers + slot * self.places[-1] + self.places[page]


def has_log(directory: Path) -> bool:
    """True if a store has a log."""
    return (directory / SUMS_NAME).exists()


def make_log(directory: Path, shape: SumShape, store_uuid: str) -> None:
    """Make an empty log, whole or not at all. Raises StoreFullError, OSError."""
    building, path = directory / f".{SUMS_NAME}.creating", directory / SUMS_NAME
    check_space(path, shape.file_bytes)
    building.unlink(missing_ok=True)
    fd = os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, shape.file_bytes)
        os.pwrite(fd, shape.head(store_uuid), 0)
        os.fsync(fd)
    except OSError:
        building.unlink()
        raise
    finally:
        os.close(fd)
    building.rename(path)
    flush_directory(directory)


class SumLog(Closing):
    """An open log. `write` may be called by several threads, each page by one."""

    def __init__(self, file: BlockFile, config: StoreConfig) -> None:
        """Raises errors of MALFORMED; PageCorruptError if the file is short."""
        self._file, self._config = file, config
        head = aligned_buffer(BLOCK_BYTES)
        file.read(0, head)
        said: dict[str, Any] = parse_json(bytes(head).rstrip(b"\0"))
        if said["store_uuid"] != config.store_uuid:
            raise ValueError("it is the log of another store")
        slots_count, note_bytes = natural(said["slots"], SLOTS_MAX), natural(said["note_bytes"])
        if slots_count < 2 or note_bytes > _NOTE_BYTES_MAX:
            raise ValueError(f"it has {slots_count} slots, and notes of {note_bytes} bytes")
        self.shape = SumShape(config, slots_count, note_bytes)
        if file.size != self.shape.file_bytes:
            raise ValueError(f"it has {file.size} bytes, expected {self.shape.file_bytes}")
        self._steps = {
            (found.step.version, found.step.attempt): found
            for slot in range(slots_count)
            if (found := self._read_header(slot)) is not None
        }
        self._rows = np.zeros(config.page_count, self.shape.row)
        """The rows of the version being made."""
        self._waiting: dict[int, bytes] = {}
        """Sums that are still to be written, by their offset."""
        self._waiting_bytes = 0

    def chain(self, step: DecidedStep) -> list[LoggedStep]:
        """The steps in the log that a version may need, the oldest first.

        Raises PageCorruptError if one of them is not there.
        """
        found: list[LoggedStep] = []
        name = name_of(step)
        while name != _NONE and len(found) < self.shape.slots_count - 1:
            logged = self._steps.get(name)
            if logged is None:
                raise PageCorruptError(
                    f"{self._file.name}: the sums of version {name[0]} are not whole, and version "
                    f"{step.version} needs them. They changed after they were written, or a write "
                    "was lost; restore the store from a checkpoint."
                )
            found.append(logged)
            name = logged.before
        return found[::-1]

    def slot_after(self, step: DecidedStep) -> int:
        """The slot of the next step."""
        logged = self._steps.get(name_of(step))
        return 0 if logged is None else (logged.slot + 1) % self.shape.slots_count

    def write(self, slot: int, page: int, data: memoryview, dtype: str, note: bytes) -> None:
        """Write the sum of a page in the version being made; the last one counts."""
        assert len(data) == self._config.page_elems[page] * DTYPES[dtype].nbytes
        data, dtype = _narrowed(data, dtype)
        offset = self.shape.offset(slot, page)
        self._waiting.pop(offset, None)
        if self.has_room(page, 1):
            self._waiting[offset] = bytes(data)
            self._waiting_bytes += len(data)
        else:
            self._file.write(offset, data)
        digest = xxhash.xxh3_128_digest(data)
        self._rows[page] = _DTYPES.index(dtype), digest, note.ljust(self.shape.note_bytes, b"\0")

    def has_room(self, first: int, count: int) -> bool:
        """True if the sums of so many pages, from `first` on, would wait for `seal`."""
        nbytes = self.shape.places[first + count] - self.shape.places[first]
        return nbytes <= min(_SMALL_BYTES, _WAITING_BYTES_MAX - self._waiting_bytes)

    def _write_waiting(self) -> None:
        start, run = 0, bytearray()
        for offset in sorted(self._waiting):
            data = self._waiting.pop(offset)
            if offset != start + len(run):
                self._file.write(start, memoryview(run))
                start, run = offset, bytearray()
            run += data.ljust(_whole(len(data)), b"\0")
        self._file.write(start, memoryview(run))

    def seal(self, slot: int, step: DecidedStep, before: DecidedStep) -> None:
        """Write what waits, and the header of the version being made; the caller flushes."""
        self._write_waiting()
        record = json.dumps(step_values(step), separators=(",", ":")).encode()
        if len(record) > STEP_RECORD_BYTES_MAX:
            raise StateError(
                f"the record of version {step.version} has {len(record)} bytes, at most "
                f"{STEP_RECORD_BYTES_MAX} fit in the log; put less into hyper and extra"
            )
        uuid, last = bytes.fromhex(self._config.store_uuid), name_of(before)
        body = _HEAD.pack(_MAGIC, uuid, *last, len(record))
        body += record + self._rows.tobytes()
        body += xxhash.xxh3_128_digest(body)
        buffer = aligned_buffer(_whole(len(body)))
        buffer[: len(body)] = body
        self._file.write(self.shape.header_offset(slot), buffer)
        self._steps = {name: each for name, each in self._steps.items() if each.slot != slot}
        self._steps[step.version, step.attempt] = LoggedStep(step, slot, last, self._rows)
        self.forget()

    def forget(self) -> None:
        """Nothing of the version being made counts."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self._rows = np.zeros(self._config.page_count, self.shape.row)

    def written(self, pages: slice) -> np.ndarray:
        """True for each of these pages that has a sum in the version being made: bool [pages]."""
        has: np.ndarray = self._rows["dtype"][pages] != 0
        return has

    def flush(self) -> None:
        """Make what is written survive loss of power."""
        self._file.flush()

    def redo(self, logged: LoggedStep, page: int, record: memoryview, redo: Redo) -> None:
        """Update a record by a step of the log, which has a sum of its page.

        Raises PageCorruptError if the sum is not what was written.
        """
        row = logged.rows[page]
        dtype, elems = _DTYPES[row["dtype"]], self._config.page_elems[page]
        data = aligned_buffer(0 if dtype == _ZEROS else elems * DTYPES[dtype].nbytes)
        self._file.read(self.shape.offset(logged.slot, page), data)
        found, expected = xxhash.xxh3_128_digest(data), row["digest"].tobytes()
        if found != expected:
            raise PageCorruptError(
                f"{self._file.name}: the sum of page {page} in version {logged.step.version} has "
                f"checksum 0x{found.hex()}, expected 0x{expected.hex()}. It changed after it was "
                "written, or the write was lost; restore the store from a checkpoint."
            )
        if dtype == _ZEROS:
            data, dtype = aligned_buffer(elems * _SUM_BYTES), "float32"
        redo(page, record, data, dtype, logged.step, row["note"].tobytes())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_header(self, slot: int) -> LoggedStep | None:
        """The step of a slot; None: nothing that is whole."""
        data = aligned_buffer(self.shape.header_bytes)
        self._file.read(self.shape.header_offset(slot), data)
        magic, uuid, *before, size = _HEAD.unpack_from(data)
        if magic != _MAGIC or uuid.hex() != self._config.store_uuid:
            return None
        rows_at, rows_bytes = _HEAD.size + size, self._config.page_count * self.shape.row.itemsize
        end = rows_at + rows_bytes
        if size > STEP_RECORD_BYTES_MAX:
            return None
        if xxhash.xxh3_128_digest(data[:end]) != bytes(data[end : end + _DIGEST_BYTES]):
            return None
        try:
            step = step_of(parse_json(bytes(data[_HEAD.size : rows_at])))
        except MALFORMED:
            return None
        rows = np.frombuffer(data[rows_at:end], self.shape.row).copy()
        if rows["dtype"].max(initial=0) >= len(_DTYPES):
            return None
        return LoggedStep(step, slot, (before[0], before[1]), rows)


def _narrowed(data: memoryview, dtype: str) -> tuple[memoryview, str]:
    """The same values in fewer bytes: none if all are zeros, as of experts that no token came to;
    half if float32 values are all of bfloat16, as the sum of one contribution in 16 bits is."""
    halves = np.frombuffer(data, np.uint16)
    if not (halves[:64].any() or halves.any()):  # mostly the first ones tell
        return data[:0], _ZEROS
    if dtype != "float32":
        return data, dtype
    bits = halves.view(np.uint32)
    if (bits[:64] & 0xFFFF).any() or (bits & 0xFFFF).any():
        return data, "float32"
    narrow = aligned_buffer(len(data) // 2)
    np.right_shift(bits, 16, out=np.frombuffer(narrow, np.uint16), casting="unsafe")
    return narrow, "bfloat16"


def _whole(nbytes: int) -> int:
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
