"""A page store on an emulated disk: the store's whole suite, and its rate."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError
from switch_emu.store import FilePageStore, MemoryPageStore, PageStore, TieredPageStore
from switch_emu.store.around import DiskPace
from tests.suites.store_suite import PageStoreSuite, contents, small_config, take_step

QUICK = 1e9


class TestPacedOverMemory(PageStoreSuite):
    @pytest.fixture
    def store(self) -> PageStore:
        return TieredPageStore(MemoryPageStore(small_config()), 0, disk_bytes_per_s=QUICK)


class TestTierOverPacedFile(PageStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> PageStore:
        inner = FilePageStore.create(tmp_path / "store", small_config(), durability="process")
        return TieredPageStore(inner, 60_000, disk_bytes_per_s=QUICK)


def test_one_disk_serves_one_after_the_other() -> None:
    """Goal: what is asked for at once is done one behind the other; an idle disk saves no time."""
    pace = DiskPace(1e6)
    assert [pace.done_ns(0, 1000) for _ in range(3)] == [1e6, 2e6, 3e6]
    assert pace.done_ns(10_000_000, 500) == 10_500_000


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_disk_without_a_rate_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        DiskPace(rate)


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
