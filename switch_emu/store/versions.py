"""The versions of a store: where each page of one lies, which may be made, which are pinned.

A *page table* says for each page of one version its side, the step that wrote it and, for pages on
disk, one checksum per field and the end of the record (see `geometry.py`).

`StepState` has the decided version and the one being made, and the calls that are allowed between
them; no I/O. Shared by every store: `interface.py` has the table of transitions, this module
enforces it.

A *pin* keeps a version readable while training goes on, for exports, evaluation and generation. Two
sides hold the last two versions of a page, so a version is gone two steps later. Before a side with
the pinned version is written, the record is copied to the pin's own file. A page is copied at most
once, and only if it is overwritten while the pin is open.

    the page still lies on its side    read there
    its side was overwritten           read from the copy in the pin's file

The file is unlinked as soon as it is open, so nothing is left behind. If it cannot be written (a
full disk), the pin is lost: reading it raises VersionMissing, and training goes on.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from luwu.base.closing import Closing
from luwu.base.errors import PageCorruptError, StateError
from switch_emu.store.config import StoreConfig
from switch_emu.store.direct_io import (
    BLOCK_BYTES,
    BUFFERED_BY_CHOICE,
    BlockFile,
    IoCounter,
    aligned_buffer,
)
from switch_emu.store.records import DecidedStep, StaleAttempt, VersionMissing
from switch_emu.store.views import write_view

DIGEST_BYTES = 16

_STATE = np.dtype([("version", "<u8"), ("attempt", "<u8"), ("side", "u1")])


class PageEntry(NamedTuple):
    """Side, step and checksums of one version of a page."""

    side: int
    version: int
    """The step that wrote it; old for pages that do not change."""
    attempt: int
    """Under which it was written, or kept."""
    digests: bytes = b""
    """xxh3-128 of each part of the record, 16 bytes each; none in memory that is not checked."""
    tail: bytes = b""
    """End of the record, stored here instead of in the side file."""


def digests_of(config: StoreConfig, first: int, records: Sequence[memoryview]) -> list[bytes]:
    """The checksums of the parts of each record, of the pages from `first` on."""
    found = []
    for kind, record in zip(config.page_kinds[first : first + len(records)], records, strict=True):
        digests = b""
        for start, stop in config.kinds[kind].parts:
            digests += xxhash.xxh3_128_digest(record[start:stop])
        found.append(digests)
    return found


class TableShape:
    """Sizes of the entries of a page table; the same for all versions."""

    def __init__(self, digest_counts: Iterable[int], tail_bytes: Iterable[int]) -> None:
        self.digest_starts = [0, *accumulate(count * DIGEST_BYTES for count in digest_counts)]
        self.tail_starts = [0, *accumulate(tail_bytes)]
        self.page_count = len(self.digest_starts) - 1

    @property
    def table_bytes(self) -> int:
        """Bytes of an encoded table."""
        states = self.page_count * _STATE.itemsize
        return states + int(self.digest_starts[-1]) + int(self.tail_starts[-1])


class PageTable:
    """One entry per page, in arrays: a million pages are copied and encoded in milliseconds."""

    def __init__(self, shape: TableShape) -> None:
        self._shape = shape
        self._states = np.zeros(shape.page_count, dtype=_STATE)
        self._states["side"] = 1  # so that version 0 goes to side 0
        self._digests = bytearray(int(shape.digest_starts[-1]))
        self._tails = bytearray(int(shape.tail_starts[-1]))

    def __len__(self) -> int:
        return self._shape.page_count

    def side(self, page: int) -> int:
        """The side on which this table's version of the page lies."""
        return int(self._states["side"][page])

    def sides(self, first: int, count: int) -> list[int]:
        """Sides of `count` pages from `first` on."""
        found: list[int] = self._states["side"][first : first + count].tolist()
        return found

    def entry(self, page: int) -> PageEntry:
        """The entry of a page."""
        return self.entries(page, 1)[0]

    def entries(self, first: int, count: int) -> list[PageEntry]:
        """The entries of so many pages from `first` on."""
        digests, tails = self._shape.digest_starts, self._shape.tail_starts
        return [
            PageEntry(
                side, version, attempt,
                bytes(self._digests[digests[page] : digests[page + 1]]),
                bytes(self._tails[tails[page] : tails[page + 1]]),
            )
            for page, (version, attempt, side) in enumerate(
                self._states[first : first + count].tolist(), first
            )
        ]  # fmt: skip

    def digests(self, pages: range) -> bytes:
        """The checksums of neighbouring pages."""
        starts = self._shape.digest_starts
        return bytes(self._digests[starts[pages.start] : starts[pages.stop]])

    def changed(self, entries: Mapping[int, PageEntry]) -> PageTable:
        """A copy with new entries for some pages; this table is unchanged."""
        shape = self._shape
        table = PageTable(shape)
        table._states[:] = self._states
        table._digests[:] = self._digests
        table._tails[:] = self._tails
        for page, entry in entries.items():
            table.put(page, entry)
        return table

    def put(self, page: int, entry: PageEntry) -> None:
        """Set the entry of a page, in this table."""
        digests, tails = self._shape.digest_starts, self._shape.tail_starts
        self._states[page] = (entry.version, entry.attempt, entry.side)
        self._digests[digests[page] : digests[page + 1]] = entry.digests
        self._tails[tails[page] : tails[page + 1]] = entry.tail

    def encode(self) -> bytes:
        """States, digests, tails: `TableShape.table_bytes` bytes."""
        return b"".join((self._states.tobytes(), self._digests, self._tails))

    @classmethod
    def decode(cls, shape: TableShape, data: memoryview) -> PageTable:
        """The table in `data`, whose checksum the caller has verified."""
        if len(data) != shape.table_bytes:
            raise PageCorruptError(
                f"a page table has {len(data)} bytes, expected {shape.table_bytes}; "
                "it belongs to another store. Restore the store from a checkpoint."
            )
        table = cls(shape)
        digests_at = shape.page_count * _STATE.itemsize
        tails_at = digests_at + len(table._digests)
        table._states = np.frombuffer(data[:digests_at], dtype=_STATE).copy()
        table._digests[:] = data[digests_at:tails_at]
        table._tails[:] = data[tails_at:]
        return table


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
        self.saved_bytes = 0
        """Bytes of the file: of the pages that were copied."""
        self._lost = ""

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
        place, entry = self.saved_bytes, self._table.entry(page)
        piece = aligned_buffer(min(_PIECE_BYTES, -(-size // BLOCK_BYTES) * BLOCK_BYTES))
        for start in range(0, size, len(piece)):
            part = piece[: min(len(piece), size - start)]
            self._read_range(page, entry, start, part)
            self._file.write(place + start, part)
        self._saved[page] = place
        self.saved_bytes += -(-size // BLOCK_BYTES) * BLOCK_BYTES

    def _make_file(self) -> BlockFile:
        fd, name = tempfile.mkstemp(prefix="pin-", dir=self._directory)
        os.close(fd)
        try:
            return BlockFile(Path(name), BUFFERED_BY_CHOICE, IoCounter(), synced=False)
        finally:
            os.unlink(name)


class StepState:
    """The decided version, the one being made, and the rules between them."""

    def __init__(
        self,
        table: PageTable,
        *,
        attempt: int = 0,
        epoch: tuple[int, ...] = (),
        decided: DecidedStep | None = None,
        prepared: tuple[DecidedStep, PageTable] | None = None,
        first_version: int = 0,
        in_place: bool = False,
    ) -> None:
        """`in_place`: a page has one side, which the next version takes over (P8)."""
        self._lock = threading.Lock()
        self._table = table
        self._tentative: dict[int, PageEntry] = {}
        self._prepared = prepared
        self._aborted_attempt = -1
        self._pins: list[Pin] = []
        self._first_version = first_version
        self._missing: set[int] = set()
        """Pages that are still to be filled."""
        self.is_in_place = in_place
        self._overwritten: set[int] = set()
        """In place: pages that are not of the decided version any more."""
        self.attempt, self.epoch = attempt, epoch
        self.decided = decided

    @property
    def prepared(self) -> DecidedStep | None:
        """The prepared step, if there is one."""
        return None if self._prepared is None else self._prepared[0]

    @property
    def next_version(self) -> int:
        """The version being made."""
        return self._first_version if self.decided is None else self.decided.version + 1

    def step_of(self, version: int) -> DecidedStep | None:
        """The step of a version that is decided or prepared."""
        steps = (self.decided, self.prepared)
        return next((each for each in steps if each is not None and each.version == version), None)

    def entry_to_read(self, page: int, version: int) -> PageEntry:
        """The entry of a version of a page. Raises VersionMissing if it cannot be read."""
        return self.entries_to_read(page, 1, version)[0]

    def entries_to_read(self, first: int, count: int, version: int) -> list[PageEntry]:
        """Entries of `count` pages from `first`."""
        with self._lock:  # a reader must not see half of a `prepare`, `decide` or `abort`
            table = self._table_of(version)
            if table is not None:
                self._check_readable(first, count, is_decided=table is self._table)
                return table.entries(first, count)
            if version == self.next_version:
                pages = range(first, first + count)
                page = next((page for page in pages if page not in self._tentative), None)
                if page is None:
                    return [self._tentative[page] for page in pages]
                raise VersionMissing(
                    f"page {page} has no version {version} yet: it was not written in attempt "
                    f"{self.attempt}; write it, or read {self._decided_text()}"
                )
            pages_text = f"page {first}" if count == 1 else f"pages {first} to {first + count - 1}"
            raise VersionMissing(
                f"{pages_text}: version {version} cannot be read; there is {self._decided_text()} "
                f"and, for pages written in attempt {self.attempt}, version {self.next_version}"
            )

    def digests(self, pages: range, version: int) -> bytes:
        """The checksums of neighbouring pages, decided or prepared. Raises VersionMissing."""
        with self._lock:
            table = self._table_of(version)
            if table is None:
                raise VersionMissing(
                    f"version {version} is not prepared; there is {self._decided_text()}"
                )
            return table.digests(pages)

    def _table_of(self, version: int) -> PageTable | None:
        """The table of a version that is decided or prepared."""
        if self.decided is not None and version == self.decided.version:
            return self._table
        if self._prepared is not None and version == self._prepared[0].version:
            return self._prepared[1]
        return None

    def pin(
        self, config: StoreConfig, directory: Path | None, read_range: ReadRange, verify: Verify
    ) -> Pin:
        """Pin the decided version; its table does not change any more."""
        with self._lock:  # else a page could be overwritten before it is pinned
            if self.decided is None:
                raise VersionMissing("there is no decided version yet: load the initial weights")
            if self._overwritten:
                raise VersionMissing("the decided version is overwritten by the one being made")
            pin = Pin(
                config, self.decided, self._table, directory=directory, read_range=read_range,
                verify=verify, closed=self._unpin,
            )  # fmt: skip
            self._pins = [*self._pins, pin]
            return pin

    def _unpin(self, pin: Pin) -> None:
        with self._lock:
            self._pins = [other for other in self._pins if other is not pin]

    @property
    def has_pins(self) -> bool:
        """True if a version is pinned."""
        return bool(self._pins)

    def close_pins(self) -> None:
        """Close all pins."""
        for pin in self._pins:
            pin.close()

    def sides_to_write(self, first: int, count: int, version: int, attempt: int) -> list[int]:
        """The sides that are not current, of so many pages from `first` on; in place the others.

        Pinned versions there are saved first. Raises StateError unless they may be written now.
        """
        if self._prepared is not None:
            raise StateError(
                f"page {first} cannot be written: version {self._prepared[0].version} is prepared "
                f"(attempt {self._prepared[0].attempt}); decide or abort it first"
            )
        self.check_making(f"page {first}", version, attempt)
        current = self._table.sides(first, count)
        sides = current if self.is_in_place else [1 - side for side in current]
        for pin in self._pins:
            for page, side in enumerate(sides, first):
                pin.overwrites(page, side)
        if self.is_in_place and self.decided is not None:
            with self._lock:
                self._overwritten.update(range(first, first + count))
        return sides

    def note_written(self, first: int, entries: Sequence[PageEntry]) -> None:
        """Note written pages of the version being made, from `first` on."""
        with self._lock:
            self._tentative.update(enumerate(entries, first))

    def note_kept(self, first: int, count: int, version: int, attempt: int) -> None:
        """Note pages that stay as they are; see `PageStore.keep`."""
        self.check_making(f"page {first}", version, attempt)
        found = self._table.entries(first, count)
        self.note_written(first, [entry._replace(attempt=attempt) for entry in found])

    # ---------------------------------------------------------------------- filling

    @property
    def is_filled(self) -> bool:
        """True if no page is missing."""
        return not self._missing

    def _check_readable(self, first: int, count: int, *, is_decided: bool) -> None:
        """Raises VersionMissing unless the pages are there, and of the decided version still."""
        for page in range(first, first + count) if self._missing or self._overwritten else ():
            if page in self._missing:
                raise VersionMissing(
                    f"page {page} cannot be read: it is still to be filled from another node; wait "
                    "until the store has all its pages"
                )
            if is_decided and page in self._overwritten:
                raise VersionMissing(f"page {page} is overwritten by the version being made")

    def begin_filling(self, version: int, table: PageTable) -> None:
        """Forget all versions, and go on from this one: all pages of `table` are missing."""
        with self._lock:
            self._table, self._prepared = table, None
            self._tentative.clear()
            self._missing = set(range(len(table)))
            self.decided = DecidedStep(version=version, attempt=self.attempt)

    def entry_to_fill(self, page: int) -> PageEntry:
        """The place of a missing page in the decided version. Raises StateError if it is there."""
        if page not in self._missing or self.decided is None:
            raise StateError(f"page {page} is not missing; only missing pages can be filled")
        if self._prepared is not None:
            raise StateError(
                f"page {page} cannot be filled: version {self._prepared[0].version} is prepared; "
                "decide or abort it first"
            )
        return PageEntry(self._table.side(page), self.decided.version, self.decided.attempt)

    def note_filled(self, page: int, entry: PageEntry) -> None:
        """A missing page is there, in the decided version."""
        with self._lock:
            self._table.put(page, entry)
            self._missing.discard(page)

    # ---------------------------------------------------------------------- versions

    def table_to_prepare(self, step: DecidedStep) -> PageTable:
        """The page table that `step` makes. Raises StateError unless it may be prepared now."""
        if self._prepared is not None:
            raise StateError(
                f"version {step.version} cannot be prepared: version {self._prepared[0].name} "
                "already is; decide or abort it first"
            )
        self.check_making("step", step.version, step.attempt)
        missing = len(self._table) - len(self._tentative)
        is_first = self.decided is None
        if is_first and (missing or (step.version == 0 and not step.applied)):
            raise StateError(
                f"version {step.version} needs all {len(self._table)} pages, {missing} are "
                "missing; write them before it is prepared"
            )
        return self._table.changed(self._tentative if step.applied or is_first else {})

    def note_prepared(self, step: DecidedStep, table: PageTable) -> None:
        """Note the prepared step."""
        with self._lock:
            self._prepared = (step, table)
            self._tentative.clear()

    def check_decide(self, version: int, attempt: int) -> None:
        """Raise StateError unless exactly this step is prepared."""
        step = self.prepared
        if step is None or (step.version, step.attempt) != (version, attempt):
            there = "nothing" if step is None else step.name
            raise StateError(
                f"version {version} (attempt {attempt}) cannot be decided: prepared is {there}; "
                "prepare it first"
            )

    def note_decided(self) -> None:
        """Make the prepared step the decided one."""
        assert self._prepared is not None
        with self._lock:
            self.decided, self._table = self._prepared
            self._prepared = None
            self._overwritten.clear()

    def table_changed(self, entries: Mapping[int, PageEntry]) -> PageTable:
        """The decided table with new entries."""
        return self._table.changed(entries)

    def note_settled(self, step: DecidedStep, table: PageTable | None = None) -> None:
        """The record of the decided version, and where it lies now."""
        with self._lock:
            self.decided, self._table = step, table or self._table

    def note_undecided(self) -> None:
        """The only version that there is, which counted as decided, is prepared."""
        assert self.decided is not None
        with self._lock:
            self._prepared, self.decided = (self.decided, self._table), None

    def abort_reaches_prepared(self, attempt: int) -> bool:
        """True if aborting this attempt discards the prepared step."""
        return self._prepared is not None and self._prepared[0].attempt <= attempt

    def note_aborted(self, attempt: int) -> None:
        """Discard writes and the prepared step of this attempt and older ones."""
        if self._overwritten:
            raise StateError(f"attempt {attempt} cannot be aborted: it overwrites pages; decide it")
        with self._lock:
            if self.abort_reaches_prepared(attempt):
                self._prepared = None
            self._tentative = {
                page: entry for page, entry in self._tentative.items() if entry.attempt > attempt
            }
        self._aborted_attempt = max(self._aborted_attempt, attempt)

    def check_attempt(self, attempt: int) -> None:
        """Raise StateError if the attempt would go back."""
        if attempt < self.attempt:
            raise StateError(
                f"attempt {attempt} is older than attempt {self.attempt}, which is recorded; "
                "attempts never go back, so ask the peers for the current one"
            )

    def check_making(self, what: str, version: int, attempt: int) -> None:
        """Raise StateError unless this is the version being made, StaleAttempt unless the attempt
        is the one that counts."""
        if version != self.next_version:
            raise StateError(
                f"{what}: version {version} cannot be made; {self._decided_text()} is decided, "
                f"so version {self.next_version} is next"
            )
        if attempt != self.attempt or attempt <= self._aborted_attempt:
            raise StaleAttempt(
                f"{what}: attempt {attempt} is stale or unknown; attempt {self.attempt} is "
                f"recorded, attempts up to {self._aborted_attempt} are aborted. "
                "Record a new attempt first."
            )
        with self._lock:
            older = next(iter(self._tentative.values()), None)
        if older is not None and older.attempt != attempt:
            raise StateError(
                f"{what}: pages of attempt {older.attempt} are still there; "
                f"abort it before attempt {attempt} goes on"
            )

    def _decided_text(self) -> str:
        return "no version" if self.decided is None else f"version {self.decided.version}"
