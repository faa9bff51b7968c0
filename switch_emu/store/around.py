"""A page store around another one: a part of the pages in RAM, and perhaps an emulated disk.

A fixed set of pages is resident, the rest streams. Every step touches every page once, in the same
order. A cache that evicts the least recently used page would always have evicted the next page; a
fixed set has a hit ratio equal to its share. The set is chosen once, by page index, up to the
budget.

Writes go through to the inner store first, so durability is that store's alone. A resident page has
one copy, the newest: in a step that is the version being made, and the decided one is read from the
inner store. States of a resident copy:

    EMPTY      -> DECIDED     `read`                 filled by the first read
    any        -> EMPTY       `begin_filling`
    EMPTY,
    DECIDED    -> TENTATIVE   `write`
    TENTATIVE  -> DECIDED     `decide`               of a step that was applied
    TENTATIVE  -> EMPTY       `abort`, `decide`      of a step that was skipped

RAM is trusted: only reads of the inner store are verified, by that store.

On an emulated disk reads and writes of the inner store share a rate. An operation is carried out at
once; then its thread waits for the rest of the time that the emulated disk needs. Flushes,
manifests and pins are not slowed down.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import groupby

from luwu.base.clock import SYSTEM_CLOCK, sleep
from switch_emu.store.config import StoreConfig
from switch_emu.store.direct_io import IoCounter
from switch_emu.store.interface import PageStore
from switch_emu.store.records import Buffer, DecidedStep
from switch_emu.store.versions import Pin
from switch_emu.store.views import RecordMemory, RecordRows, check_rows, write_view


class DiskPace:
    """The schedule of an emulated disk. Thread-safe."""

    def __init__(self, rate_bytes_per_s: float) -> None:
        self._ns_per_byte = 1e9 / rate_bytes_per_s
        self._lock = threading.Lock()
        self._free_ns = 0.0

    def done_ns(self, now_ns: int, nbytes: int) -> float:
        """Queue a transfer; return when the disk finishes it."""
        with self._lock:
            self._free_ns = max(self._free_ns, now_ns) + nbytes * self._ns_per_byte
            return self._free_ns

    @contextmanager
    def transfer(self, nbytes: int) -> Iterator[None]:
        """Wait, after a transfer, until the disk has finished it."""
        done_ns = self.done_ns(SYSTEM_CLOCK.now_ns(), nbytes)
        yield
        missing_ns = done_ns - SYSTEM_CLOCK.now_ns()
        if missing_ns > 0:
            sleep(missing_ns / 1e9)


def pages_that_fit(config: StoreConfig, resident_bytes: int) -> dict[int, int]:
    """Resident pages, by index up to the budget, and the bytes of each."""
    fitting: dict[int, int] = {}
    left = resident_bytes
    for page in range(config.page_count):
        record_bytes = config.kind(page).record_bytes
        if record_bytes <= left:
            fitting[page] = record_bytes
            left -= record_bytes
    return fitting


class TieredPageStore(PageStore):
    """`store` with up to `resident_bytes` of its pages in RAM. Closing it closes `store`."""

    def __init__(
        self, store: PageStore, resident_bytes: int, *, disk_bytes_per_s: float | None = None
    ) -> None:
        """`disk_bytes_per_s`: rate of an emulated disk; None: that of `store`."""
        self._store, self._steps = store, store._steps
        self.config, self.generation, self.notes = store.config, store.generation, store.notes
        self._pace = None if disk_bytes_per_s is None else DiskPace(disk_bytes_per_s)
        self._resident = pages_that_fit(store.config, resident_bytes)
        self._memory = RecordMemory(self._resident)
        self._decided: set[int] = set()
        """Pages whose copy is of the decided version."""
        self._tentative: dict[int, int] = {}
        """Pages whose copy is of the version being made -> the attempt that wrote it."""

    @property
    def stats(self) -> IoCounter:
        return self._store.stats

    @property
    def disk_bytes(self) -> int:
        return self._store.disk_bytes

    def record_attempt(self, attempt: int, epoch: tuple[int, ...] | None = None) -> None:
        self._store.record_attempt(attempt, epoch)

    def read_rows(self, first: int, version: int, into: RecordRows) -> None:
        """Read from RAM what is there in this version, the rest from the inner store."""
        check_rows(self.config, first, into, to_fill=True)
        copies, start = self._copies(version), 0
        for is_copied, run in groupby(page in copies for page in range(first, first + into.count)):
            stop = start + sum(1 for _ in run)
            part = into.part(start, stop)
            if is_copied:
                for page, record in enumerate(part.records(), first + start):
                    record[:] = self._memory.record(page)
            else:
                with self._transfer(part.count * part.record_bytes):
                    self._store.read_rows(first + start, version, part)
                decided = self.decided
                if decided is not None and version == decided.version:  # not one that has gone
                    self._fill_copies(first + start, part)
            start = stop

    def read_field(self, page: int, version: int, field_name: str, into: memoryview) -> None:
        """Read from RAM if the copy is of this version, else from the inner store."""
        if page not in self._copies(version):
            with self._transfer(into.nbytes):
                self._store.read_field(page, version, field_name, into)
            return
        start, stop = self.config.kind(page).range(field_name)
        view = write_view(into, stop - start, f"page {page}, field {field_name}")
        view[:] = self._memory.record(page)[start:stop]

    def rows_in_ram(self, first: int, count: int, version: int) -> RecordRows | None:
        """The copies, if all are of this version; the inner store's, if there is none."""
        copies = self._copies(version)
        are_copied = [page in copies for page in range(first, first + count)]
        if not any(are_copied):
            return self._store.rows_in_ram(first, count, version)
        found = self._memory.rows(first, count) if all(are_copied) else None
        return None if found is None else found.readonly()

    def write_rows(self, first: int, version: int, attempt: int, rows: RecordRows) -> None:
        """Write to the inner store, then to the copies."""
        with self._transfer(rows.count * rows.record_bytes):
            self._store.write_rows(first, version, attempt, rows)
        if first not in self._resident:  # of pages of one size the first ones are
            return
        for page, record in enumerate(rows.records(), first):
            if page in self._resident:
                self._decided.discard(page)
                self._memory.record(page)[:] = record
                self._tentative[page] = attempt

    def begin_filling(self, version: int) -> None:
        """Drop all copies, and begin to fill the inner store."""
        self._store.begin_filling(version)
        self._decided.clear()
        self._tentative.clear()

    def fill(self, page: int, record: Buffer) -> None:
        with self._transfer(memoryview(record).nbytes):
            self._store.fill(page, record)

    def digest(self, pages: range, version: int) -> bytes:
        return self._store.digest(pages, version)

    def pin(self) -> Pin:
        return self._store.pin()

    def prepare(self, step: DecidedStep) -> None:
        """Prepare the inner store; copies of a skipped step are dropped."""
        self._store.prepare(step)
        if not step.applied:
            self._drop_tentative(step.attempt)

    def decide(self, version: int, attempt: int) -> None:
        """Decide on the inner store; tentative copies become decided."""
        self._store.decide(version, attempt)
        self._decided.update(self._tentative)
        self._tentative.clear()

    def abort(self, attempt: int) -> None:
        """Abort on the inner store and drop the stale copies."""
        self._store.abort(attempt)
        self._drop_tentative(attempt)

    def close(self) -> None:
        """Drop all copies and close the inner store."""
        self._decided.clear()
        self._tentative.clear()
        self._store.close()

    def _transfer(self, nbytes: int) -> AbstractContextManager[None]:
        """A transfer of the inner store takes its time on an emulated disk."""
        return nullcontext() if self._pace is None else self._pace.transfer(nbytes)

    def _fill_copies(self, first: int, rows: RecordRows) -> None:
        """Copy decided records, from page `first` on, of resident pages that have no copy yet."""
        for page, record in enumerate(rows.records(), first):
            is_empty = page not in self._decided and page not in self._tentative
            if is_empty and page in self._resident:
                self._memory.record(page)[:] = record
                self._decided.add(page)

    def _copies(self, version: int) -> Container[int]:
        """The pages whose copy is of this version."""
        decided = self.decided
        if decided is not None and version == decided.version:
            return self._decided
        return self._tentative if version == self._steps.next_version else ()

    def _drop_tentative(self, attempt: int) -> None:
        for page, written in list(self._tentative.items()):
            if written <= attempt:
                del self._tentative[page]
