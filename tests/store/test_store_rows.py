"""P1 to P3: neighbouring pages that are read and written together are those of single calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from luwu.base.errors import PageCorruptError, StateError
from switch_emu.store import (
    DecidedStep,
    FilePageStore,
    PageStore,
    StoreConfig,
    VersionMissing,
    aligned_buffer,
)
from switch_emu.store.views import RecordRows
from tests.suites.store_suite import (
    STORES,
    adamw_kind,
    contents,
    read,
    record,
    small_config,
    take_step,
    write_pages,
)

RECORD_BYTES = adamw_kind(4096).record_bytes
ALIGNED = -(-RECORD_BYTES // 4096) * 4096


def equal_config() -> StoreConfig:
    """Six pages of one size, and a short one."""
    return small_config(page_kinds=(0,) * 6 + (1,), page_elems=(4096,) * 6 + (64,))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PageStore]:
    with STORES[request.param](tmp_path / "store", equal_config()) as made:
        yield made


def rows_of(count: int, stride: int = ALIGNED, shift: int = 0) -> RecordRows:
    size = (count - 1) * stride + RECORD_BYTES
    return RecordRows(aligned_buffer(size + shift)[shift:], count, RECORD_BYTES, stride)


@pytest.mark.parametrize(("stride", "shift"), [(ALIGNED, 0), (RECORD_BYTES, 0), (ALIGNED, 3)])
def test_rows_are_the_records_of_single_pages(store: PageStore, stride: int, shift: int) -> None:
    """P1, P3. Goal: any run of pages, of both versions and from any place in memory.
    Method: versions in which other pages were written, so that neighbours lie on two sides."""
    take_step(store, 0)
    for version, pages in enumerate(([0, 1, 2, 3, 4, 5], [1, 2, 5], [2, 3]), 1):
        before = contents(store, version - 1)
        write_pages(store, pages, version)
        store.prepare(DecidedStep(version=version, attempt=0))
        for wanted in (version - 1, version):
            expected = before if wanted < version else contents(store, version)
            for first in range(6):
                for count in range(1, 7 - first):
                    into = rows_of(count, stride, shift)
                    store.read_rows(first, wanted, into)
                    found = [bytes(each) for each in into.records()]
                    assert found == expected[first : first + count], (version, first, count)
                    lying = store.rows_in_ram(first, count, wanted)
                    if lying is not None:
                        assert lying.memory.readonly
                        assert [bytes(each) for each in lying.records()] == found
        store.decide(version, 0)


@pytest.mark.parametrize(("stride", "shift"), [(ALIGNED, 0), (RECORD_BYTES, 0), (ALIGNED, 3)])
def test_rows_are_written_as_single_pages_are(store: PageStore, stride: int, shift: int) -> None:
    """P1, P3. Goal: what is written together is found alone, and what was decided stays until
    then; memory of the store itself is filled where it has some."""
    take_step(store, 0)
    take_step(store, 1, pages=[0, 3, 4])
    before = contents(store, 1)
    rows = store.rows_to_fill(1, 4, 2, 0) or rows_of(4, stride, shift)
    for page, place in enumerate(rows.records(), 1):
        place[:] = record(store, page, 2)
    store.write_rows(1, 2, 0, rows)
    assert contents(store, 1) == before
    assert [read(store, page, 2) for page in range(1, 5)] == [
        record(store, page, 2) for page in range(1, 5)
    ]
    with pytest.raises(VersionMissing, match="page 5 has no version 2"):
        store.read_rows(4, 2, rows_of(2))
    store.prepare(DecidedStep(version=2, attempt=0))
    store.decide(2, 0)
    assert contents(store, 2) == [
        record(store, page, 2) if page in range(1, 5) else before[page] for page in range(7)
    ]


def test_rows_that_do_not_fit_are_refused(store: PageStore) -> None:
    """Goal: pages of two sizes, a buffer of another size and one that is read-only are errors."""
    take_step(store, 0)
    for first, rows in (
        (5, rows_of(2)),
        (6, rows_of(1)),
        (0, RecordRows(aligned_buffer(ALIGNED), 2, RECORD_BYTES, ALIGNED)),
        (0, RecordRows(aligned_buffer(RECORD_BYTES + 64), 2, RECORD_BYTES, 64)),
        (6, rows_of(2)),
    ):
        with pytest.raises(StateError, match=f"page.* {first}|does not exist"):
            store.read_rows(first, 0, rows)
        with pytest.raises(StateError, match=f"page.* {first}|does not exist"):
            store.write_rows(first, 1, 0, rows)
    with pytest.raises(StateError, match="read-only"):
        store.read_rows(0, 0, rows_of(2).readonly())


@pytest.mark.parametrize("direct_io", [True, False])
def test_neighbours_on_one_side_are_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct_io: bool
) -> None:
    """Goal: one system call for each run of pages on one side; where one comes short, the rest of
    it is transferred page by page."""
    calls: list[int] = []
    limits: list[int] = []

    def limited(call: Callable[..., int]) -> Callable[..., int]:
        def some(fd: int, views: list[memoryview], at: int) -> int:
            calls.append(len(views))
            if limits:
                return call(fd, [views[0][: limits.pop()]], at)
            return call(fd, views, at)

        return some

    with FilePageStore.create(tmp_path / "store", equal_config(), direct_io=direct_io) as store:
        if store.direct.enabled != direct_io:
            pytest.skip(store.direct.reason)
        take_step(store, 0)
        take_step(store, 1, pages=[2])
        monkeypatch.setattr(os, "preadv", limited(os.preadv))
        monkeypatch.setattr(os, "pwritev", limited(os.pwritev))
        rows = rows_of(6)
        read_before = store.stats.bytes_read
        store.read_rows(0, 1, rows)
        assert calls == [2, 1, 3]
        body = RECORD_BYTES - 64
        assert store.stats.bytes_read - read_before == 6 * body
        calls.clear()
        limits.append(8192)
        into = rows_of(2)
        store.read_rows(3, 1, into)
        assert calls == [2, 1, 1]
        assert [bytes(each) for each in into.records()] == [read(store, page, 1) for page in (3, 4)]
        calls.clear()
        limits.append(8192)
        store.write_rows(0, 2, 0, rows)
        assert calls == [2, 1, 1, 1, 3]
        assert [read(store, page, 2) for page in range(6)] == [bytes(r) for r in rows.records()]


def test_a_damaged_page_among_others_is_named(tmp_path: Path) -> None:
    """P3. Goal: one wrong byte in a run of pages is an error of its page and field."""
    path = tmp_path / "store"
    with FilePageStore.create(path, equal_config()) as store:
        take_step(store, 0)
        starts = np.cumsum([0, *[RECORD_BYTES - 64] * 6])
    with (path / "side0.dat").open("r+b") as file:
        file.seek(int(starts[3]) + 4096 * 4 + 5)  # in m
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    with FilePageStore.open(path) as store:
        store.read_rows(0, 0, rows_of(3))
        with pytest.raises(PageCorruptError, match=r"page 3 of side0\.dat, field m"):
            store.read_rows(1, 0, rows_of(4))
