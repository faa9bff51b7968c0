"""The store in RAM, and the RAM tier over it."""

from __future__ import annotations

import pytest

from switch_emu.store import MemoryPageStore, PageStore, TieredPageStore
from tests.suites.store_suite import PageStoreSuite, small_config


class TestMemoryPageStore(PageStoreSuite):
    @pytest.fixture
    def store(self) -> PageStore:
        return MemoryPageStore(small_config())


class TestTierOverMemory(PageStoreSuite):
    @pytest.fixture
    def store(self) -> PageStore:
        return TieredPageStore(MemoryPageStore(small_config()), 60_000)
