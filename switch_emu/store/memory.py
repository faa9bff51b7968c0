"""A page store in RAM: the same rules, nothing on disk.

For jobs without durability, beside a log of sums, and for tests. RAM is trusted: no read is
checked; checksums are kept for `digest` alone. In place there is one side, in half of the memory: a
step overwrites the version that it is made of, and cannot be aborted after the first of its pages.

In place, the first field of a page, its weights, may *lie apart*: in memory that the caller gives
and shows to other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import xxhash

from luwu.base.address import address_of
from luwu.base.errors import StateError
from switch_emu.store.config import StoreConfig
from switch_emu.store.interface import PageStore
from switch_emu.store.records import Buffer, DecidedStep
from switch_emu.store.versions import PageEntry, PageTable, Pin, StepState, TableShape, digests_of
from switch_emu.store.views import RecordMemory, RecordRows, check_rows, one_record, write_view


class MemoryPageStore(PageStore):
    """Two sides per page in RAM, or one; memory is allocated when first written."""

    def __init__(
        self, config: StoreConfig, *, in_place: bool = False,
        weights: Mapping[int, memoryview] | None = None, pins: Path | None = None,
        has_digests: bool = False,
    ) -> None:  # fmt: skip
        """`weights`: where those of some pages lie apart: memory that begins with them, and goes on
        with those of the pages that follow there. `pins`: directory for pages of pinned versions;
        None: the system's for temporary files. `has_digests`: checksums are kept, for `digest`."""
        assert not (weights and has_digests), "records are whole where they are compared"
        assert in_place or not weights, "the next version would overwrite the decided one"
        self.config, self._pins, self._has_digests = config, pins, has_digests
        self._weights = dict(weights or {})
        self.generation = 1  # a store in RAM is opened once
        self._steps = StepState(self._empty_table(), in_place=in_place)
        sizes = {
            page: config.kind(page).record_bytes - self._apart_bytes(page)
            for page in range(config.page_count)
        }
        first = RecordMemory(sizes)
        self._sides: Sequence[RecordMemory] = (first, first if in_place else RecordMemory(sizes))
        self._closed = False

    def _empty_table(self) -> PageTable:
        pages = range(self.config.page_count)
        counts = [self._has_digests * len(self.config.kind(page).parts) for page in pages]
        return PageTable(TableShape(counts, [0] * len(pages)))

    def record_attempt(self, attempt: int, epoch: tuple[int, ...] | None = None) -> None:
        self._check_open()
        self._steps.check_attempt(attempt)
        self._steps.attempt = attempt
        self._steps.epoch = self._steps.epoch if epoch is None else epoch

    def read_rows(self, first: int, version: int, into: RecordRows) -> None:
        self._check_open()
        check_rows(self.config, first, into, to_fill=True)
        for page, record in enumerate(into.records(), first):
            self._read_range(page, self._steps.entry_to_read(page, version), 0, record)

    def read_field(self, page: int, version: int, field_name: str, into: memoryview) -> None:
        self._check_open()
        start, stop = self.config.kind(page).range(field_name)
        view = write_view(into, stop - start, f"page {page}, field {field_name}")
        self._read_range(page, self._steps.entry_to_read(page, version), start, view)

    def is_quick(self, first: int, count: int) -> bool:
        """True unless a version is pinned: pages of it are saved to a file first."""
        return not self._steps.has_pins

    def rows_in_ram(self, first: int, count: int, version: int) -> RecordRows | None:
        """The side that holds this version, if it is one."""
        self._check_open()
        entries = self._steps.entries_to_read(first, count, version)
        found = self._rows(first, [entry.side for entry in entries])
        return None if found is None else found.readonly()

    def rows_to_fill(
        self, first: int, count: int, version: int, attempt: int
    ) -> RecordRows | None:  # fmt: skip
        """The side to be written, if it is one."""
        self._check_open()
        return self._rows(first, self._steps.sides_to_write(first, count, version, attempt))

    def write_rows(self, first: int, version: int, attempt: int, rows: RecordRows) -> None:
        """Copy records to the side to be written, unless they are there already."""
        self._check_open()
        if rows.weights is None:
            check_rows(self.config, first, rows)
        sides = self._steps.sides_to_write(first, rows.count, version, attempt)
        places = self._rows(first, sides)
        is_there = places is not None and address_of(rows.memory) == address_of(places.memory)
        assert is_there or rows.weights is None, "weights apart come with records that are there"
        if not is_there:
            for side, (page, record) in zip(sides, enumerate(rows.records(), first), strict=True):
                self._put(page, side, record)
        digests = self._digests(first, rows)
        self._steps.note_written(
            first,
            [
                PageEntry(side, version, attempt, each)
                for side, each in zip(sides, digests, strict=True)
            ],
        )

    def _digests(self, first: int, rows: RecordRows) -> list[bytes]:
        if not self._has_digests:
            return [b""] * rows.count
        return digests_of(self.config, first, rows.records())

    def _rows(self, first: int, sides: Sequence[int]) -> RecordRows | None:
        """The records on these sides, from page `first` on, if it is one side, and the weights of
        all or none of them lie apart, in one piece."""
        count, weights = len(sides), self._weights.get(first)
        found = self._sides[sides[0]].rows(first, count) if len(set(sides)) == 1 else None
        last = self._weights.get(first + count - 1)
        if found is None or weights is last is None:
            return found
        if weights is None or last is None:
            return None
        size = self._apart_bytes(first)
        is_one = address_of(last) - address_of(weights) == (count - 1) * size
        return replace(found, weights=weights[: count * size]) if is_one else None

    def digest(self, pages: range, version: int) -> bytes:
        assert self._has_digests, "none are kept"
        return xxhash.xxh3_128_digest(self._steps.digests(pages, version))

    def repair(self, read: Callable[[int, int, memoryview], None]) -> None:
        """Read pages of the decided version again whose records are not what was written.

        `read` fills memory with the record of a (page, version). Without checksums nothing is done.
        """
        decided = self._steps.decided
        if not self._has_digests or decided is None or not self._steps.is_filled:
            return
        for page in range(self.config.page_count):
            entry = self._steps.entry_to_read(page, decided.version)
            record = self._sides[entry.side].record(page)
            if digests_of(self.config, page, [record]) != [entry.digests]:
                read(page, decided.version, record)

    def pin(self) -> Pin:
        """Pin the decided version; overwritten pages are saved to a file, not to RAM."""
        self._check_open()
        return self._steps.pin(
            self.config, self._pins, self._read_range, lambda page, entry, index, part: None
        )

    def _read_range(self, page: int, entry: PageEntry, start: int, into: memoryview) -> None:
        apart, record = self._parts(page, entry.side)
        end, stop = len(apart), start + len(into)
        from_apart = max(0, min(end, stop) - start)
        into[:from_apart] = apart[start : start + from_apart]
        into[from_apart:] = record[max(0, start - end) : max(0, stop - end)]

    def _put(self, page: int, side: int, record: memoryview) -> None:
        apart, rest = self._parts(page, side)
        apart[:], rest[:] = record[: len(apart)], record[len(apart) :]

    def _parts(self, page: int, side: int) -> tuple[memoryview, memoryview]:
        """A record: what of it lies apart, and the rest."""
        apart, rest = self._weights.get(page), self._sides[side].record(page)
        return rest[:0] if apart is None else apart[: self._apart_bytes(page)], rest

    def _apart_bytes(self, page: int) -> int:
        """Bytes of a page's record that lie apart."""
        return self.config.kind(page).parts[0][1] if page in self._weights else 0

    def begin_filling(self, version: int) -> None:
        self._check_open()
        self._steps.begin_filling(version, self._empty_table())

    def fill(self, page: int, record: Buffer) -> None:
        self._check_open()
        rows = one_record(record)
        check_rows(self.config, page, rows)
        entry = self._steps.entry_to_fill(page)
        self._put(page, entry.side, rows.memory)
        (digests,) = self._digests(page, rows)
        self._steps.note_filled(page, entry._replace(digests=digests))

    def prepare(self, step: DecidedStep) -> None:
        self._check_open()
        self._steps.note_prepared(step, self._steps.table_to_prepare(step))

    def decide(self, version: int, attempt: int) -> None:
        self._check_open()
        self._steps.check_decide(version, attempt)
        self._steps.note_decided()

    def abort(self, attempt: int) -> None:
        self._check_open()
        self._steps.note_aborted(attempt)

    def close(self) -> None:
        self._steps.close_pins()
        self._closed = True
        self._sides = ()
        self._weights.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("this store is closed; open it again")
