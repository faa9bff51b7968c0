"""What workers keep beside a version: one file a version, named in the record of its step.

    put      a piece of one rank, from any thread, written at once
    seal     flushed; what the record must say to find it again: places and checksums
    settle   a version is decided: files of older ones are deleted
    hold     a decided version, to be read piece by piece, verified

The file of a version that was never decided is deleted with the next that is; a crash leaves one at
most, which the next opening deletes. Where the state is in RAM only, it is a file without a name.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from luwu.base.closing import Closing
from luwu.base.errors import PageCorruptError, StateError, StoreFullError
from luwu.base.making import flush_directory
from switch_emu.store.interface import DecidedStep

RECORD_KEY = "kept"
"""In `DecidedStep.extra`."""

_PREFIX = "kept-"


class _Piece(NamedTuple):
    piece: int
    start: int
    size: int
    digest: str


class _File:
    """Pieces in the order in which they came."""

    def __init__(self, directory: Path | None, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._size = 0
        self.pieces: dict[int, list[_Piece]] = defaultdict(list)
        """By rank."""
        if directory is None:
            fd, path = tempfile.mkstemp(prefix=_PREFIX)
            os.unlink(path)
            self.fd = fd
        else:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self.fd = os.open(directory / name, flags, 0o600)

    def put(self, rank: int, piece: int, data: memoryview) -> None:
        with self._lock:
            start, self._size = self._size, self._size + len(data)
        done = 0
        while done < len(data):
            done += os.pwrite(self.fd, data[done:], start + done)
        entry = _Piece(piece, start, len(data), xxhash.xxh3_128_hexdigest(data))
        with self._lock:
            self.pieces[rank].append(entry)


class KeptVersion(Closing):
    """What each rank keeps beside one version; it stays readable when the version is long gone."""

    def __init__(self, name: str, fd: int, pieces: Mapping[int, Sequence[_Piece]]) -> None:
        self._name, self._fd, self._pieces = name, fd, pieces
        self._lock = threading.Lock()

    @property
    def sizes(self) -> dict[int, tuple[int, ...]]:
        """Rank -> bytes of each of its pieces."""
        return {rank: tuple(p.size for p in pieces) for rank, pieces in self._pieces.items()}

    def read(self, rank: int, piece: int) -> bytes:
        """A piece of a rank. Raises: StateError if there is none; PageCorruptError."""
        pieces = self._pieces.get(rank, ())
        if piece >= len(pieces):
            raise StateError(f"rank {rank} has attached no piece {piece} to this version")
        entry = pieces[piece]
        with self._lock:  # a descriptor that is closed may soon be another file's
            if self._fd < 0:
                raise StateError(f"{self._name} is held no more: it was closed")
            data = os.pread(self._fd, entry.size, entry.start)
        if len(data) != entry.size or xxhash.xxh3_128_hexdigest(data) != entry.digest:
            raise PageCorruptError(
                f"{self._name}: piece {piece} at byte {entry.start} changed after it was written; "
                "restore the state from a checkpoint."
            )
        return data

    def read_all(self) -> dict[int, bytes]:
        """What each rank keeps, whole."""
        return {
            rank: b"".join(self.read(rank, piece) for piece in range(len(pieces)))
            for rank, pieces in self._pieces.items()
        }

    def close(self) -> None:
        """Close the file; may be repeated."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class KeptFiles(Closing):
    """See the module; `directory` None: nothing outlives this process."""

    def __init__(
        self, directory: Path | None, *, synced: bool, decided: DecidedStep | None,
        read_only: bool = False,
    ) -> None:  # fmt: skip
        """`decided`: the newest step, whose file stays; `read_only`: so do all others."""
        self._directory, self._synced = directory, synced
        self._lock = threading.Lock()
        self._files: dict[tuple[int, int], _File] = {}
        """By version and attempt."""
        if directory is not None and not read_only:
            record = None if decided is None else decided.extra.get(RECORD_KEY)
            self._delete_all_but(None if record is None else json.loads(record)["file"])

    def put(self, version: int, attempt: int, rank: int, piece: int, data: memoryview) -> None:
        """Put a piece aside. Raises StoreFullError, StateError."""
        with self._lock:
            file = self._files.get((version, attempt))
            if file is None:
                name = f"{_PREFIX}{version}-{attempt}.dat"
                file = self._files[version, attempt] = _File(self._directory, name)
        try:
            file.put(rank, piece, data)
        except OSError as exc:
            raise StoreFullError(
                f"{file.name}: what rank {rank} attached to the step cannot be written: {exc}. "
                "Free some space and start the node again."
            ) from exc

    def seal(self, version: int, attempt: int) -> str:
        """Flush what was put aside for a version; for the record of its step."""
        file = self._files[version, attempt]
        if self._synced:
            os.fdatasync(file.fd)
            if self._directory is not None:
                flush_directory(self._directory)
        pieces = {str(rank): sorted(each) for rank, each in sorted(file.pieces.items())}
        return json.dumps({"file": file.name, "pieces": pieces}, separators=(",", ":"))

    def settle(self, version: int, step: DecidedStep | None) -> None:
        """A version is decided: what was kept with others goes."""
        record = None if step is None else step.extra.get(RECORD_KEY)
        kept = None if record is None else json.loads(record)["file"]
        with self._lock:
            gone = {
                key: file for key, file in self._files.items()
                if key[0] < version or (key[0] == version and file.name != kept)
            }  # fmt: skip
            for key, file in gone.items():
                del self._files[key]
                os.close(file.fd)
                if self._directory is not None:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self._directory / file.name)

    def hold(self, step: DecidedStep) -> KeptVersion:
        """What is kept beside the version that this step made, to be read as long as one likes.

        Raises: StateError if it is gone.
        """
        record = step.extra.get(RECORD_KEY)
        if record is None:
            return KeptVersion("nothing", -1, {})
        found: dict[str, Any] = json.loads(record)
        with self._lock:
            open_file = next((f for f in self._files.values() if f.name == found["file"]), None)
            fd = os.dup(open_file.fd) if open_file is not None else self._open(found["file"])
        pieces = {
            int(rank): [_Piece(*each) for each in kept] for rank, kept in found["pieces"].items()
        }
        return KeptVersion(found["file"], fd, pieces)

    def close(self) -> None:
        """Close the files; that of the decided version stays."""
        with self._lock:
            for file in self._files.values():
                os.close(file.fd)
            self._files.clear()

    def _open(self, name: str) -> int:
        if self._directory is None or Path(name).name != name:
            raise StateError(f"{name}: what was attached to this version is not here any more")
        try:
            return os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise StateError(
                f"{self._directory / name} cannot be opened: {exc}. It holds what workers attached "
                "to the last step; restore it, or start without it from an export."
            ) from exc

    def _delete_all_but(self, name: str | None) -> None:
        assert self._directory is not None
        for path in self._directory.glob(f"{_PREFIX}*.dat"):
            if path.name != name:
                path.unlink()


def read_kept(directory: Path, step: DecidedStep) -> dict[int, bytes]:
    """What each rank keeps beside the version of a state at rest. Raises StateError."""
    with (
        KeptFiles(directory, synced=False, decided=step, read_only=True) as files,
        files.hold(step) as kept,
    ):
        return kept.read_all()
