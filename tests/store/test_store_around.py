"""Every kind of store; and those around another: a RAM tier, whose pages do not touch the disk, and
an emulated disk."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from luwu.base.clock import SYSTEM_CLOCK
from switch_emu.store import FilePageStore, MemoryPageStore, TieredPageStore
from switch_emu.store.around import DiskPace, pages_that_fit
from tests.suites.store_suite import (
    PageStoreSuite,
    contents,
    read,
    record,
    small_config,
    take_step,
    write_pages,
)

ALL_PAGES = range(7)


class TestEveryKindOfStore(PageStoreSuite):
    """P1 to P7, of each."""


@pytest.fixture
def inner(tmp_path: Path) -> FilePageStore:
    return FilePageStore.create(tmp_path / "store", small_config(), durability="process")


def test_what_fits_is_never_read_from_disk(inner: FilePageStore) -> None:
    """Goal: with room for all pages, steps read nothing. Method: count bytes over five steps."""
    with TieredPageStore(inner, inner.config.state_bytes) as store:
        for version in range(5):
            take_step(store, version)
            assert contents(store, version) == [record(store, page, version) for page in ALL_PAGES]
        assert store.stats.bytes_read == 0


def test_the_set_is_fixed_and_within_the_budget(inner: FilePageStore) -> None:
    """Goal: pages are taken in index order as far as the budget goes, and stay the same."""
    first_two = sum(inner.config.kind(page).record_bytes for page in (0, 1))
    assert sum(pages_that_fit(inner.config, first_two + 300).values()) == first_two + 256
    with TieredPageStore(inner, first_two + 300) as store:
        take_step(store, 0)
        for page in 3 * (0, 1, 2, 3, 4, 5):
            before = store.stats.bytes_read
            read(store, page, 0)
            # page 3 has 256 bytes, page 2 8 KiB
            assert (store.stats.bytes_read == before) == (page in (0, 1, 3))


def test_an_aborted_version_is_not_served(inner: FilePageStore) -> None:
    """P1. Goal: after an abort the previous version comes from disk, then from RAM again."""
    with TieredPageStore(inner, inner.config.state_bytes) as store:
        take_step(store, 0)
        write_pages(store, ALL_PAGES, 1)
        assert read(store, 0, 0) == record(store, 0, 0)  # the older of two: from disk
        store.abort(0)

        assert contents(store, 0) == [record(store, page, 0) for page in ALL_PAGES]
        from_disk = store.stats.bytes_read
        assert from_disk > 0
        assert contents(store, 0) == [record(store, page, 0) for page in ALL_PAGES]
        assert store.stats.bytes_read == from_disk


def test_one_disk_serves_one_after_the_other() -> None:
    """Goal: what is asked for at once is done one behind the other; an idle disk saves no time."""
    pace = DiskPace(1e6)
    assert [pace.done_ns(0, 1000) for _ in range(3)] == [1e6, 2e6, 3e6]
    assert pace.done_ns(10_000_000, 500) == 10_500_000


def test_threads_share_the_rate() -> None:
    """Goal: all bytes together take at least what the rate says. Method: four threads read."""
    config = small_config()
    rate = 4e6
    with TieredPageStore(MemoryPageStore(config), 0, disk_bytes_per_s=rate) as store:
        take_step(store, 0)
        start_ns = SYSTEM_CLOCK.now_ns()
        threads = [threading.Thread(target=contents, args=(store, 0)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
        assert seconds >= 4 * store.config.state_bytes / rate
