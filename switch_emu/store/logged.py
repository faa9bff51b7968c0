"""A page store in RAM that is durable: a store in a directory beside it has its pages, and a log of
the sums that they were updated with since (`sums.py`).

All is read and written in RAM. On disk a step writes the sum of each page that it updates, by
`log_sum`, and whole only the pages that have their turn; those too that were not updated, if they
have a sum in the log. A page that is written and has no sum in this version is written whole.

    open     the record of each page is read, and the updates since are made again
    close    pages that have sums in the log are written whole: a clean end leaves nothing to redo
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import numpy as np

from luwu.base.clock import SYSTEM_CLOCK
from switch_emu.store.direct_io import IoCounter, aligned_buffer
from switch_emu.store.file import FilePageStore
from switch_emu.store.interface import PageStore
from switch_emu.store.memory import MemoryPageStore
from switch_emu.store.records import Buffer, DecidedStep, VersionMissing
from switch_emu.store.versions import Pin
from switch_emu.store.views import RecordRows, one_record


class LoggedPageStore(PageStore):
    """`file`, which keeps a log, with all of its pages in `ram`. Closing it closes both."""

    def __init__(self, file: FilePageStore, ram: MemoryPageStore) -> None:
        """Load all pages into `ram`, which is empty. Raises StateError if one cannot be read."""
        self._file, self._ram, self._steps = file, ram, ram._steps
        self.config, self.generation, self.notes = file.config, file.generation, file.notes
        self._behind = np.zeros(self.config.page_count, bool)
        """Pages that have sums in the log since they were written whole; ..."""
        self._next_behind = self._behind
        """... in the prepared version."""
        self._written = np.zeros(self.config.page_count, bool)
        """Pages that were written whole in the version being made."""
        self._load()

    def _load(self) -> None:
        """Read the decided version and the prepared one; what they lack is made again."""
        file, ram, start_ns = self._file, self._ram, SYSTEM_CLOCK.now_ns()
        decided, prepared, steps = file.decided, file.prepared, set[int]()
        first = decided or prepared
        if first is not None:
            ram.record_attempt(first.attempt)
            ram.begin_filling(first.version)
            self._behind = self._next_behind = self._lacking(first.version, steps)
            self._read_all(first.version, ram.fill)
            self._steps.note_settled(first)
        if prepared is not None and decided is None:  # of a new store, or one that was filled (P7)
            self._steps.note_undecided()
        elif prepared is not None:
            ram.record_attempt(prepared.attempt)
            self._next_behind = self._lacking(prepared.version, steps)
            if prepared.applied:
                write = partial(ram.write, version=prepared.version, attempt=prepared.attempt)
                self._read_all(prepared.version, lambda page, record: write(page, record=record))
            ram.prepare(prepared)
        ram.record_attempt(file.attempt, file.epoch)
        self.redone = len(steps), (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9

    def _lacking(self, version: int, steps: set[int]) -> np.ndarray:
        """The pages that have sums in the log: bool [pages]; their steps are added to `steps`."""
        found = np.zeros(self.config.page_count, bool)
        for page in range(self.config.page_count):
            lacking = self._file.lacking(page, version)
            found[page] = bool(lacking)
            steps.update(each.step.version for each in lacking)
        return found

    def _read_all(self, version: int, put: Callable[[int, memoryview], None]) -> None:
        def read(page: int) -> None:
            record = aligned_buffer(self.config.kind(page).record_bytes)
            self._file.read(page, version, record)
            put(page, record)

        with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="luwu-load") as pool:
            for _ in pool.map(read, range(self.config.page_count)):
                pass

    @property
    def stats(self) -> IoCounter:
        return self._file.stats

    @property
    def disk_bytes(self) -> int:
        return self._file.disk_bytes

    def record_attempt(self, attempt: int, epoch: tuple[int, ...] | None = None) -> None:
        self._file.record_attempt(attempt, epoch)
        self._ram.record_attempt(attempt, epoch)

    def read_rows(self, first: int, version: int, into: RecordRows) -> None:
        self._ram.read_rows(first, version, into)

    def read_field(self, page: int, version: int, field_name: str, into: memoryview) -> None:
        self._ram.read_field(page, version, field_name, into)

    def rows_in_ram(self, first: int, count: int, version: int) -> RecordRows | None:
        return self._ram.rows_in_ram(first, count, version)

    def rows_to_fill(
        self, first: int, count: int, version: int, attempt: int
    ) -> RecordRows | None:  # fmt: skip
        return self._ram.rows_to_fill(first, count, version, attempt)

    def is_quick(self, first: int, count: int) -> bool:
        """True if the log keeps their sums in RAM until `prepare`."""
        return self._ram.is_quick(first, count) and self._file.is_quick(first, count)

    def wants_sum(self, page: int) -> bool:
        return self._file.wants_sum(page)

    def log_sum(
        self, page: int, version: int, attempt: int, data: memoryview, dtype: str, note: bytes
    ) -> None:  # fmt: skip
        self._file.log_sum(page, version, attempt, data, dtype, note)

    def write_rows(self, first: int, version: int, attempt: int, rows: RecordRows) -> None:
        """Write to RAM; what has no sum, whole to disk."""
        self._ram.write_rows(first, version, attempt, rows)
        whole = np.flatnonzero(~self._file.sums_written(slice(first, first + rows.count)))
        if len(whole) == rows.count and rows.weights is None:
            self._file.write_rows(first, version, attempt, rows)
            self._written[first : first + rows.count] = True
        else:
            self._write_whole((first + whole).tolist(), version)

    def _write_whole(self, pages: Sequence[int], version: int) -> None:
        """Write pages to disk, for the version being made, as they are in this one."""
        for page in pages:
            rows = one_record(aligned_buffer(self.config.kind(page).record_bytes))
            self._ram.read_rows(page, version, rows)
            self._file.write_rows(page, self._steps.next_version, self.attempt, rows)
            self._written[page] = True

    def digest(self, pages: range, version: int) -> bytes:
        return self._ram.digest(pages, version)

    def pin(self) -> Pin:
        return self._ram.pin()

    def begin_filling(self, version: int) -> None:
        self._file.begin_filling(version)
        self._ram.begin_filling(version)
        self._behind = np.zeros(self.config.page_count, bool)
        self._written[:] = False

    def fill(self, page: int, record: Buffer) -> None:
        self._file.fill(page, record)
        self._ram.fill(page, record)

    def prepare(self, step: DecidedStep) -> None:
        """Write what has its turn and was not updated, then prepare both stores."""
        decided, self._next_behind = self.decided, self._behind
        if decided is not None and step.applied:
            summed = self._file.sums_written()
            late = np.flatnonzero(self._behind & ~self._written & ~summed)
            turned = [page for page in late.tolist() if self._file.has_turn(page)]
            self._write_whole(turned, decided.version)
            self._next_behind = (self._behind | summed) & ~self._written
        self._file.prepare(step)
        self._ram.prepare(step)

    def decide(self, version: int, attempt: int) -> None:
        """Decide in both stores."""
        self._file.decide(version, attempt)
        self._ram.decide(version, attempt)
        self._behind = self._next_behind
        self._written[:] = False

    def abort(self, attempt: int) -> None:
        """Abort in both stores. Replicas may have differed by a bit that flipped in RAM: then its
        page is read from disk."""
        self._ram.abort(attempt)
        self._file.abort(attempt)
        self._ram.repair(self._file.read)
        self._written[:] = False

    def close(self) -> None:
        """Write whole what has sums in the log, if nothing is being made; close both stores."""
        version = None if self.decided is None else self.decided.version
        if version is not None and self._file.is_running:
            with suppress(VersionMissing):  # in place, and being overwritten: it is made again
                self._file.settle(lambda page, record: self._ram.read(page, version, record))
        self._ram.close()
        self._file.close()
