"""The store in RAM with one side: a version overwrites the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from luwu.base.errors import StateError
from switch_emu.store import DecidedStep, MemoryPageStore, Pin, VersionMissing
from tests.suites.store_suite import contents, read, record, small_config, take_step, write_pages


def test_in_place_a_version_overwrites_the_one_before() -> None:
    """P4, P8. Goal: a page has one memory; what is overwritten cannot be read, what is not can; a
    pin, made before, sees the whole version, and none can be made until the next is decided."""
    store = MemoryPageStore(small_config(), in_place=True)
    pages = range(store.config.page_count)
    take_step(store, 0)
    assert store.is_quick(0, 1)
    with store.pin() as pin:
        assert not store.is_quick(0, 1), "what it overwrites goes to a file"
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


APART: dict[str, Any] = {
    "page_kinds": (2, 2, 2, 3, 0, 0, 3), "page_elems": (1024, 1024, 1024, 64, 4096, 4096, 64),
}  # fmt: skip
"""Changes of the configuration. Weights of pages 0 to 2 lie in one memory, those of 3 and 4 too."""


def apart_store() -> tuple[MemoryPageStore, Sequence[memoryview]]:
    """A store in place, and the memory of its weights."""
    three, two = memoryview(bytearray(3 * 4096)), memoryview(bytearray(256 + 4 * 4096))
    weights = {page: three[page * 4096 :] for page in range(3)} | {3: two, 4: two[256:]}
    return MemoryPageStore(small_config(**APART), in_place=True, weights=weights), (three, two)


def fields(source: MemoryPageStore | Pin, store: MemoryPageStore, *version: int) -> Iterator[bytes]:
    """All fields of all pages."""
    for page in range(store.config.page_count):
        for field in store.config.kind(page).fields:
            found = memoryview(bytearray(field.field_bytes))
            source.read_field(page, *version, field.name, found)
            yield bytes(found)


def test_weights_may_lie_apart() -> None:
    """P3, P6, P8. Goal: a store whose weights lie in memory that it was given has the content of
    one that has them in its records: whole, by field, pinned, filled; and shows the
    weights there, and no room for them elsewhere."""
    (store, (three, two)), plain = (
        apart_store(),
        MemoryPageStore(small_config(**APART), in_place=True),
    )
    for each in (store, plain):
        take_step(each, 0)
    first, pages = contents(plain, 0), range(7)
    assert contents(store, 0) == first
    assert b"".join(record[:4096] for record in first[:3]) == bytes(three)
    assert first[3] + first[4][: 4 * 4096] == bytes(two)
    assert list(fields(store, store, 0)) == list(fields(plain, plain, 0))
    rows = store.rows_in_ram(0, 3, 0)
    assert rows is not None
    assert rows.weights == three
    assert rows.record_bytes == len(first[0]) - 4096
    assert store.rows_in_ram(4, 2, 0) is None, "of these the weights of one alone lie apart"
    pins = [each.pin() for each in (store, plain)]
    for each in (store, plain):
        take_step(each, 1, pages=[0, 1, 3, 4, 5])
    assert contents(store, 1) == contents(plain, 1)
    assert list(fields(pins[0], store)) == list(fields(pins[1], plain))
    store.begin_filling(5)
    for page in pages:
        store.fill(page, first[page])
    assert contents(store, 5) == first
