"""A page store on an emulated disk: pages pass no faster than its rate.

One disk has one rate, for what is read and written together. The operation itself is done at once;
then its thread waits for what the emulated disk would still need, so the slower of the two counts.
Flushes and manifests take what the host takes, and so do pins.
"""

from __future__ import annotations

import threading

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.errors import ConfigError
from switch_emu.store.config import StoreConfig
from switch_emu.store.interface import Buffer, DecidedStep, PageStore, StoreStats
from switch_emu.store.pins import Pin


class DiskPace:
    """When an emulated disk is done; any thread may ask."""

    def __init__(self, rate_bytes_per_s: float) -> None:
        if not rate_bytes_per_s > 0:
            raise ConfigError(f"disk_rate must be above 0, got {rate_bytes_per_s!r}")
        self._ns_per_byte = 1e9 / rate_bytes_per_s
        self._lock = threading.Lock()
        self._free_ns = 0.0

    def done_ns(self, now_ns: int, nbytes: int) -> float:
        """When the disk is done with these bytes too, asked for now."""
        with self._lock:
            self._free_ns = max(self._free_ns, now_ns) + nbytes * self._ns_per_byte
            return self._free_ns


class PacedPageStore(PageStore):
    """`store` behind a disk of a given rate. Closing it closes `store`."""

    def __init__(self, store: PageStore, rate_bytes_per_s: float) -> None:
        self._store = store
        self._pace = DiskPace(rate_bytes_per_s)

    @property
    def config(self) -> StoreConfig:
        """The inner store's."""
        return self._store.config

    @property
    def generation(self) -> int:
        """The inner store's."""
        return self._store.generation

    @property
    def attempt(self) -> int:
        """The inner store's."""
        return self._store.attempt

    @property
    def decided(self) -> DecidedStep | None:
        """The inner store's."""
        return self._store.decided

    @property
    def prepared(self) -> DecidedStep | None:
        """The inner store's."""
        return self._store.prepared

    @property
    def stats(self) -> StoreStats:
        """The inner store's."""
        return self._store.stats

    @property
    def disk_bytes(self) -> int:
        """The inner store's."""
        return self._store.disk_bytes

    def record_attempt(self, attempt: int) -> None:
        """Of the inner store."""
        self._store.record_attempt(attempt)

    def read(self, page: int, version: int, into: memoryview) -> None:
        """Read from the inner store, and wait for the emulated disk."""
        done_ns = self._done_ns(memoryview(into).nbytes)
        self._store.read(page, version, into)
        _wait_until(done_ns)

    def read_field(self, page: int, version: int, field_name: str, into: memoryview) -> None:
        """Read from the inner store, and wait for the emulated disk."""
        done_ns = self._done_ns(memoryview(into).nbytes)
        self._store.read_field(page, version, field_name, into)
        _wait_until(done_ns)

    def write(self, page: int, version: int, attempt: int, record: Buffer) -> None:
        """Write to the inner store, and wait for the emulated disk."""
        done_ns = self._done_ns(memoryview(record).nbytes)
        self._store.write(page, version, attempt, record)
        _wait_until(done_ns)

    def record_in_ram(self, page: int, version: int) -> memoryview | None:
        """The inner store's: what is in RAM needs no disk."""
        return self._store.record_in_ram(page, version)

    def place_in_ram(self, page: int, version: int, attempt: int) -> memoryview | None:
        """The inner store's."""
        return self._store.place_in_ram(page, version, attempt)

    def pin(self) -> Pin:
        """The inner store's."""
        return self._store.pin()

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

    def _done_ns(self, nbytes: int) -> float:
        return self._pace.done_ns(SYSTEM_CLOCK.now_ns(), nbytes)


def _wait_until(done_ns: float) -> None:
    missing_ns = done_ns - SYSTEM_CLOCK.now_ns()
    if missing_ns > 0:
        sleep(missing_ns / 1e9)
