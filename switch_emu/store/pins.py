"""A version that stays readable while training goes on: for exports, evaluation and generation.

Two sides hold the last two versions of a page, so a version is gone two steps later. A *pin*
preserves one: before a side with the pinned version is written, the record is copied to the pin's
own file. A page is copied at most once, and only if it is overwritten while the pin is open.

    the page still lies on its side    read there
    its side was overwritten           read from the copy in the pin's file

The file is unlinked as soon as it is open, so nothing is left behind. If it cannot be written (a
full disk), the pin is lost: reading it raises VersionMissing, and training goes on.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from luwu.base.closing import Closing
from luwu.base.errors import PageCorruptError
from switch_emu.store.config import StoreConfig
from switch_emu.store.direct_io import (
    BLOCK_BYTES,
    BUFFERED_BY_CHOICE,
    BlockFile,
    IoCounter,
    aligned_buffer,
)
from switch_emu.store.page_table import PageEntry, PageTable
from switch_emu.store.records import DecidedStep, VersionMissing
from switch_emu.store.views import write_view

_PIECE_BYTES = 1024 * 1024
"""Bytes copied at a time; a multiple of BLOCK_BYTES."""

ReadRange = Callable[[int, PageEntry, int, memoryview], None]
"""(page, entry, first byte of the record, into): reads from the side of the entry."""
Verify = Callable[[int, PageEntry, int, memoryview], None]
"""(page, entry, index of the field, its bytes): raises PageCorruptError."""


class Pin(Closing):
    """A pinned version. Any thread may read; writers of a page call `overwrites` first."""

    def __init__(
        self, config: StoreConfig, step: DecidedStep, table: PageTable, *, directory: Path | None,
        read_range: ReadRange, verify: Verify, closed: Callable[[Pin], None],
    ) -> None:  # fmt: skip
        self.step = step
        """The record of the step that made this version."""
        self._config, self._table = config, table
        self._directory = directory
        self._read_range, self._verify, self._closed = read_range, verify, closed
        self._lock = threading.Lock()
        self._saved: dict[int, int] = {}
        """Page -> offset of its record in the file."""
        self._file: BlockFile | None = None
        self._file_bytes = 0
        self._lost = ""

    @property
    def saved_bytes(self) -> int:
        """Bytes of the pages that were copied."""
        return self._file_bytes

    def read_field(self, page: int, field_name: str, into: memoryview) -> None:
        """Fill `into` with one field of this version. Raises VersionMissing, PageCorruptError."""
        kind = self._config.kind(page)
        index = kind.index(field_name)
        view = write_view(into, kind.fields[index].field_bytes, f"page {page}, field {field_name}")
        start, stop = kind.parts[index]
        part = view if len(view) == stop - start else memoryview(bytearray(stop - start))
        with self._lock:  # so that the page is not overwritten meanwhile
            if self._lost:
                text = f"version {self.step.version} is not pinned any more: {self._lost}"
                raise VersionMissing(text)
            entry = self._table.entry(page)
            place = self._saved.get(page)
            if place is None:
                self._read_range(page, entry, start, part)
            else:
                assert self._file is not None
                self._file.read(place + start, part)
        self._verify(page, entry, index, part)
        if part is not view:
            view[:] = part[: len(view)]

    def overwrites(self, page: int, side: int) -> None:
        """Save a page before this side of it is written, if it has the pinned version."""
        if self._lost or self._table.side(page) != side:
            return
        with self._lock:
            if page in self._saved or self._lost:
                return
            try:
                self._copy(page)
            except (OSError, PageCorruptError) as exc:
                self._lost = f"page {page} could not be copied ({exc})"

    def close(self) -> None:
        """Release the version."""
        self._closed(self)
        with self._lock:
            self._lost = self._lost or "it was closed"
            if self._file is not None:
                self._file.close()
                self._file = None

    def _copy(self, page: int) -> None:
        if self._file is None:
            self._file = self._make_file()
        size = self._config.kind(page).record_bytes
        place, entry = self._file_bytes, self._table.entry(page)
        piece = aligned_buffer(min(_PIECE_BYTES, -(-size // BLOCK_BYTES) * BLOCK_BYTES))
        for start in range(0, size, len(piece)):
            part = piece[: min(len(piece), size - start)]
            self._read_range(page, entry, start, part)
            self._file.write(place + start, part)
        self._saved[page] = place
        self._file_bytes += -(-size // BLOCK_BYTES) * BLOCK_BYTES

    def _make_file(self) -> BlockFile:
        fd, name = tempfile.mkstemp(prefix="pin-", dir=self._directory)
        os.close(fd)
        try:
            return BlockFile(Path(name), BUFFERED_BY_CHOICE, IoCounter(), synced=False)
        finally:
            os.unlink(name)
