"""The store in RAM with one side: a version overwrites the one before."""

from __future__ import annotations

import pytest

from luwu.base.errors import StateError
from switch_emu.store import DecidedStep, MemoryPageStore, VersionMissing
from tests.suites.store_suite import contents, read, record, small_config, take_step, write_pages


def test_in_place_a_version_overwrites_the_one_before() -> None:
    """P4, P8. Goal: a page has one memory; what is overwritten cannot be read, what is not can; a
    pin, made before, sees the whole version, and none can be made until the next is decided."""
    store = MemoryPageStore(small_config(), in_place=True)
    pages = range(store.config.page_count)
    take_step(store, 0)
    with store.pin() as pin:
        rows = store.rows_to_fill(0, 1, 1, 0)
        assert rows is not None
        rows.memory[:] = record(store, 0, 1)
        store.write_rows(0, 1, 0, rows)
        with pytest.raises(VersionMissing, match="page 0 is overwritten"):
            read(store, 0, 0)
        assert read(store, 1, 0) == record(store, 1, 0)
        with pytest.raises(VersionMissing):
            store.pin()
        write_pages(store, pages[2:], 1)
        store.prepare(DecidedStep(version=1, attempt=0))
        store.decide(1, 0)
        for page in pages:
            start, stop = store.config.kind(page).range("weight")
            found = memoryview(bytearray(stop - start))
            pin.read_field(page, "weight", found)
            assert bytes(found) == record(store, page, 0)[start:stop]
    assert contents(store, 1) == [record(store, page, int(page != 1)) for page in pages]
    found_in_ram = store.rows_in_ram(0, 1, 1)
    assert found_in_ram is not None
    assert found_in_ram.memory.obj is rows.memory.obj


def test_in_place_nothing_is_taken_back() -> None:
    """P8. Goal: an abort before the first page changes nothing; after it, it is refused."""
    store = MemoryPageStore(small_config(), in_place=True)
    take_step(store, 0)
    store.abort(0)
    store.record_attempt(1)
    write_pages(store, [3], 1, attempt=1)
    with pytest.raises(StateError, match="attempt 1 cannot be aborted"):
        store.abort(1)
    write_pages(store, [0], 1, attempt=1)
    store.prepare(DecidedStep(version=1, attempt=1))
    store.decide(1, 1)
    assert read(store, 3, 1) == record(store, 3, 1, 1)
