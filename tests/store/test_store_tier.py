"""The RAM tier: a fixed set of pages that does not touch the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from switch_emu.store import FilePageStore, MemoryPageStore, PageStore, TieredPageStore
from switch_emu.store.around import pages_that_fit
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


class TestTierOverFile(PageStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[PageStore]:
        inner = FilePageStore.create(tmp_path / "store", small_config(), durability="process")
        with TieredPageStore(inner, 60_000) as store:
            yield store


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


def test_negative_budget_is_refused() -> None:
    """Goal: nothing is clamped."""
    with pytest.raises(ConfigError, match="-1"):
        TieredPageStore(MemoryPageStore(small_config()), -1)
