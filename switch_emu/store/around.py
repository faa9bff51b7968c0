"""A page store that forwards every call to another one; base of those that change some."""

from __future__ import annotations

from switch_emu.store.interface import PageStore
from switch_emu.store.pins import Pin
from switch_emu.store.records import Buffer, DecidedStep, StoreStats
from switch_emu.store.views import RecordRows


class PageStoreAround(PageStore):
    """Forwards every call to `store`. Closing it closes `store`."""

    def __init__(self, store: PageStore) -> None:
        self._store = store
        self.config, self.generation, self.notes = store.config, store.generation, store.notes

    @property
    def attempt(self) -> int:
        return self._store.attempt

    @property
    def decided(self) -> DecidedStep | None:
        return self._store.decided

    @property
    def prepared(self) -> DecidedStep | None:
        return self._store.prepared

    @property
    def stats(self) -> StoreStats:
        """Traffic between the inner store and its disk."""
        return self._store.stats

    @property
    def disk_bytes(self) -> int:
        return self._store.disk_bytes

    @property
    def epoch(self) -> tuple[int, ...]:
        return self._store.epoch

    def record_attempt(self, attempt: int, epoch: tuple[int, ...] | None = None) -> None:
        """Raise the attempt of the inner store."""
        self._store.record_attempt(attempt, epoch)

    def read_rows(self, first: int, version: int, into: RecordRows) -> None:
        """Read from the inner store."""
        self._store.read_rows(first, version, into)

    def read_field(self, page: int, version: int, field_name: str, into: memoryview) -> None:
        """Read from the inner store."""
        self._store.read_field(page, version, field_name, into)

    def write_rows(self, first: int, version: int, attempt: int, rows: RecordRows) -> None:
        """Write to the inner store."""
        self._store.write_rows(first, version, attempt, rows)

    def rows_in_ram(self, first: int, count: int, version: int) -> RecordRows | None:
        return self._store.rows_in_ram(first, count, version)

    def rows_to_fill(
        self, first: int, count: int, version: int, attempt: int
    ) -> RecordRows | None:  # fmt: skip
        return self._store.rows_to_fill(first, count, version, attempt)

    def digest(self, pages: range, version: int) -> bytes:
        return self._store.digest(pages, version)

    def pin(self) -> Pin:
        return self._store.pin()

    def begin_filling(self, version: int) -> None:
        """Begin to fill the inner store."""
        self._store.begin_filling(version)

    def fill(self, page: int, record: Buffer) -> None:
        """Write a missing page of the inner store."""
        self._store.fill(page, record)

    def prepare(self, step: DecidedStep) -> None:
        """Prepare the inner store."""
        self._store.prepare(step)

    def decide(self, version: int, attempt: int) -> None:
        """Decide on the inner store."""
        self._store.decide(version, attempt)

    def abort(self, attempt: int) -> None:
        """Abort on the inner store."""
        self._store.abort(attempt)

    def close(self) -> None:
        """Close the inner store."""
        self._store.close()
