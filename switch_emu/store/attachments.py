"""Attachments of workers: one file per version, named in the record of its step.

    put            write a piece of one rank, from any thread
    seal           flush; return the index of places and checksums for the record of the step
    replace        write beside it what a rank attaches to the decided version in place of something
    note_decided   delete the files of versions that cannot be opened any more
    open           read a decided version piece by piece, verified

The file of the version before the decided one stays, for a reader that has pinned it and opens its
attachments next. The file of a version that was never decided is deleted when the next is decided;
a crash leaves at most one, which the next opening deletes. With a state in RAM the files have no
names.
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
from luwu.base.directories import flush_directory
from luwu.base.errors import PageCorruptError, StateError, refusing
from luwu.base.foreign import natural, open_file, parse_json, plain_text, read_file, taking
from luwu.base.limits import PAYLOAD_BYTES_MAX
from luwu.base.quantities import decimal
from switch_emu.store.records import RECORD_KEY, DecidedStep

_PREFIX, _SUFFIX = "kept-", ".dat"
_DIGEST_BYTES = 32
_LOST = "The undecided step is lost, the decided version is unchanged. "


class _Piece(NamedTuple):
    piece: int
    start: int
    size: int
    digest: str


class _File:
    """A file of pieces in order of arrival."""

    def __init__(self, directory: Path | None, name: str) -> None:
        self._lock = threading.Lock()
        self._size = 0
        self.pieces: dict[int, list[_Piece]] = defaultdict(list)
        """Pieces by rank."""
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


class VersionAttachments(Closing):
    """Attachments of all ranks to one version; readable until closed."""

    def __init__(
        self, name: str, fd: int, pieces: Mapping[int, Sequence[_Piece]],
        replaced: Mapping[tuple[int, int], bytes],
    ) -> None:  # fmt: skip
        """`replaced`: (rank, piece) -> what has a file of its own."""
        self._name, self._fd, self._pieces, self._replaced = name, fd, pieces, replaced
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
                raise StateError(f"{self._name} was closed")
            with refusing(f"{self._name} cannot be read at byte {entry.start}"):
                data = self._replaced.get((rank, piece)) or os.pread(
                    self._fd, entry.size, entry.start
                )
        if len(data) != entry.size or xxhash.xxh3_128_hexdigest(data) != entry.digest:
            raise PageCorruptError(
                f"{self._name}: piece {piece} at byte {entry.start} changed after it was written; "
                "restore the state from a checkpoint."
            )
        return data

    def read_all(self) -> dict[int, bytes]:
        """Rank -> its whole attachment."""
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


class AttachmentFiles(Closing):
    """Attachments of a state; `directory` None: files without names, gone with this process."""

    def __init__(
        self, directory: Path | None, *, synced: bool, decided: DecidedStep | None,
        read_only: bool = False,
    ) -> None:  # fmt: skip
        """`decided`: the newest step, whose file stays; `read_only`: all files stay."""
        self._directory, self._synced = directory, synced
        self._lock = threading.Lock()
        self._files: dict[str, _File | None] = {}
        """Files that are to be deleted one day, by name; None: it is closed."""
        self._replaced: dict[str, bytes] = {}
        """What ranks replaced, in place of files where these have no names."""
        if directory is not None and not read_only:
            self._files = {path.name: None for path in directory.glob(f"{_PREFIX}*")}
            version, attached = -1 if decided is None else decided.version, _name_in(decided)
            for found in list(self._files):
                if _version_in(found) > version or _is_over(found, version, attached):
                    self._delete(found)

    def put(self, version: int, attempt: int, rank: int, piece: int, data: memoryview) -> None:
        """Write a piece. Raises StoreFullError, StateError."""
        name = _name_of(version, attempt)
        what = f"{self._place(name)}: what rank {rank} attached to the step cannot be written"
        with refusing(what, _LOST):
            with self._lock:
                file = self._files.get(name)
                if file is None:
                    file = self._files[name] = _File(self._directory, name)
            file.put(rank, piece, data)

    def seal(self, version: int, attempt: int) -> str:
        """Flush the pieces of a version; return the entry for the record of its step.

        Raises StoreFullError, StateError.
        """
        name = _name_of(version, attempt)
        file = self._files[name]
        assert file is not None, "nothing was put"
        if self._synced:
            place = self._place(name)
            with refusing(f"{place}: what workers attached to the step cannot be flushed", _LOST):
                os.fdatasync(file.fd)
                if self._directory is not None:
                    flush_directory(self._directory)
        pieces = {str(rank): sorted(each) for rank, each in sorted(file.pieces.items())}
        return json.dumps({"file": name, "pieces": pieces}, separators=(",", ":"))

    def replace(self, step: DecidedStep | None, version: int, rank: int, data: memoryview) -> None:
        """Make it durable that a rank has replaced a part of its attachment to a version, which is
        that of the newest step, or is needed no more. Raises StoreFullError, StateError."""
        name = _name_in(step)
        if step is None or step.version != version or name is None:
            return
        name = _replacing(name, rank)
        content = xxhash.xxh3_128_hexdigest(data).encode() + data
        with self._lock:
            self._files.setdefault(name, None)
        if self._directory is None:
            self._replaced[name] = content
            return
        what = f"{self._place(name)}: what rank {rank} attached to the step cannot be replaced"
        with refusing(what, "The decided version is unchanged. "):
            path = self._directory / name
            new = path.with_suffix(".new")
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                if self._synced:
                    os.fdatasync(file.fileno())
            os.replace(new, path)
            if self._synced:
                flush_directory(self._directory)

    def note_decided(self, version: int, step: DecidedStep | None) -> None:
        """Delete files that are not needed once a version is decided."""
        name = _name_in(step)
        with self._lock:
            for gone in [each for each in self._files if _is_over(each, version, name)]:
                self._delete(gone)

    def open(self, step: DecidedStep) -> VersionAttachments:
        """The attachments to the version that this step made, open until closed.

        Raises: StateError if they are gone.
        """
        name = _name_in(step)
        if name is None:
            return VersionAttachments("nothing", -1, {}, {})
        with taking("the record of what was attached to this version", StateError):
            found: dict[str, Any] = parse_json(step.extra[RECORD_KEY].encode())
            pieces = {
                int(rank): [
                    _Piece(natural(number), natural(start), natural(size), plain_text(digest))
                    for number, start, size, digest in each
                ]
                for rank, each in found["pieces"].items()
            }
        with self._lock:
            file = self._files.get(name)
            fd = os.dup(file.fd) if file is not None else self._open(name)
        ends = [piece.start + piece.size for each in pieces.values() for piece in each]
        if max(ends, default=0) > os.fstat(fd).st_size:
            os.close(fd)
            raise PageCorruptError(f"{name} is shorter than what was attached to this version")
        replaced = {}
        for rank, each in pieces.items():
            content = self._replacement(_replacing(name, rank))
            if content:
                digest = content[:_DIGEST_BYTES].decode(errors="replace")
                data = replaced[rank, len(each)] = content[_DIGEST_BYTES:]
                each.append(_Piece(len(each), 0, len(data), digest))
        return VersionAttachments(name, fd, pieces, replaced)

    def close(self) -> None:
        """Close the files; that of the decided version stays."""
        with self._lock:
            for file in filter(None, self._files.values()):
                os.close(file.fd)
            self._files.clear()

    def _replacement(self, name: str) -> bytes:
        """The content of a file that replaces something, its checksum first; empty if there is
        none."""
        if self._directory is None:
            return self._replaced.get(name, b"")
        with refusing(f"{name} cannot be read"), contextlib.suppress(FileNotFoundError):
            return read_file(self._directory / name, PAYLOAD_BYTES_MAX + _DIGEST_BYTES)
        return b""

    def _open(self, name: str) -> int:
        if self._directory is None or Path(name).name != name:
            raise StateError(f"{name}: what was attached to this version is not here any more")
        try:
            return open_file(self._directory / name)
        except OSError as exc:
            raise StateError(
                f"{self._directory / name} cannot be opened: {exc}. It holds what workers attached "
                "to the last step; restore it, or start without it from an export."
            ) from exc

    def _place(self, name: str) -> str:
        """The name of a file in messages."""
        return f"{name} in RAM" if self._directory is None else str(self._directory / name)

    def _delete(self, name: str) -> None:
        self._replaced.pop(name, None)
        file = self._files.pop(name)
        if file is not None:
            os.close(file.fd)
        if self._directory is not None:
            with refusing(f"{self._place(name)} cannot be deleted"):
                (self._directory / name).unlink(missing_ok=True)


def _name_of(version: int, attempt: int) -> str:
    """The file of what is attached to a version, made under an attempt."""
    return f"{_PREFIX}{version}-{attempt}{_SUFFIX}"


def _name_in(step: DecidedStep | None) -> str | None:
    """The file that the record of a step names."""
    record = None if step is None else step.extra.get(RECORD_KEY)
    if record is None:
        return None
    with taking("the record of what was attached to this version", StateError):
        return plain_text(parse_json(record.encode())["file"])


def _version_in(name: str) -> int:
    """The version in a file's name; -1 if the name is not ours."""
    found = decimal(name.removeprefix(_PREFIX).partition("-")[0])
    return -1 if found is None else found


def _is_over(name: str, decided: int, attached: str | None) -> bool:
    """True if a file is obsolete: its version is too old, or was decided without it."""
    version = _version_in(name)
    whole = "-".join(name.partition(".")[0].split("-")[:3]) + _SUFFIX
    return version < decided - 1 or (version == decided and whole != attached)


def _replacing(name: str, rank: int) -> str:
    """The name of the file that replaces a part of what a rank has in the file of this name."""
    return f"{name.removesuffix(_SUFFIX)}-{rank}{_SUFFIX}"


def read_attachments(directory: Path, step: DecidedStep) -> dict[int, bytes]:
    """Rank -> its attachment to the version of a state at rest. Raises StateError."""
    with (
        AttachmentFiles(directory, synced=False, decided=step, read_only=True) as files,
        files.open(step) as kept,
    ):
        return kept.read_all()
