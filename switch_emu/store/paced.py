"""A page store on an emulated disk: pages are read and written at its rate at most.

Reads and writes share the rate. An operation is carried out at once; then its thread waits for the
rest of the time that the emulated disk needs, so the slower of the two counts. Flushes, manifests
and pins are not slowed down.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.errors import ConfigError
from switch_emu.store.around import PageStoreAround
from switch_emu.store.interface import PageStore
from switch_emu.store.records import Buffer
from switch_emu.store.views import RecordRows


class DiskPace:
    """The schedule of an emulated disk. Thread-safe."""

    def __init__(self, rate_bytes_per_s: float) -> None:
        if not rate_bytes_per_s > 0:
            raise ConfigError(f"disk_rate must be above 0, got {rate_bytes_per_s!r}")
        self._ns_per_byte = 1e9 / rate_bytes_per_s
        self._lock = threading.Lock()
        self._free_ns = 0.0

    def done_ns(self, now_ns: int, nbytes: int) -> float:
        """Queue a transfer; return when the disk finishes it."""
        with self._lock:
            self._free_ns = max(self._free_ns, now_ns) + nbytes * self._ns_per_byte
            return self._free_ns


class PacedPageStore(PageStoreAround):
    """`store` on a disk of a given rate; records in RAM need no disk."""

    def __init__(self, store: PageStore, rate_bytes_per_s: float) -> None:
        super().__init__(store)
        self._pace = DiskPace(rate_bytes_per_s)

    def read_rows(self, first: int, version: int, into: RecordRows) -> None:
        """Read from the inner store, and wait for the emulated disk."""
        with self._paced(into.count * into.record_bytes):
            super().read_rows(first, version, into)

    def read_field(self, page: int, version: int, field_name: str, into: memoryview) -> None:
        """Read from the inner store, and wait for the emulated disk."""
        with self._paced(into.nbytes):
            super().read_field(page, version, field_name, into)

    def write_rows(self, first: int, version: int, attempt: int, rows: RecordRows) -> None:
        """Write to the inner store, and wait for the emulated disk."""
        with self._paced(rows.count * rows.record_bytes):
            super().write_rows(first, version, attempt, rows)

    def fill(self, page: int, record: Buffer) -> None:
        """Write to the inner store, and wait for the emulated disk."""
        with self._paced(memoryview(record).nbytes):
            super().fill(page, record)

    @contextmanager
    def _paced(self, nbytes: int) -> Iterator[None]:
        done_ns = self._pace.done_ns(SYSTEM_CLOCK.now_ns(), nbytes)
        yield
        missing_ns = done_ns - SYSTEM_CLOCK.now_ns()
        if missing_ns > 0:
            sleep(missing_ns / 1e9)
