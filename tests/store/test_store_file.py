"""The store in files: opening, locking, stopping on errors."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from luwu.base.errors import ConfigError, PageCorruptError, StateError, StoreFullError
from switch_emu.store import Contributor, DecidedStep, FilePageStore, aligned_buffer
from switch_emu.store.direct_io import BUFFERED_BY_CHOICE, BlockFile, IoCounter, probe_direct_io
from tests.suites.store_suite import contents, read, record, small_config, take_step, write_pages


def test_reopening_finds_the_decided_version(tmp_path: Path) -> None:
    """P2, P5. Goal: everything decided is there again; generation rises, attempt stays."""
    path = tmp_path / "store"
    step = DecidedStep(
        version=1, attempt=3, contributors=(Contributor(0, 1, 5),), norms=(1 / 3,), extra={"a": "b"}
    )
    config = small_config()
    with FilePageStore.create(path, config) as store:
        assert store.generation == 1
        take_step(store, 0)
        store.record_attempt(3)
        write_pages(store, [1, 4], 1, attempt=3)
        store.prepare(step)
        store.decide(1, 3)
        write_pages(store, [0, 1], 2, attempt=3)
        expected = contents(store, 1)
    with FilePageStore.open(path) as store:
        assert store.config == config
        assert (store.generation, store.attempt, store.decided) == (2, 3, step)
        assert store.notes == ()
        assert contents(store, 1) == expected
        with pytest.raises(StateError, match="not written"):
            read(store, 0, 2)
    with FilePageStore.open(path, direct_io=False) as store:
        assert store.generation == 3
        assert contents(store, 1) == expected


def test_files_are_private_and_of_fixed_size(tmp_path: Path) -> None:
    """Goal: modes 0700 and 0600; steps neither grow a file nor leave another behind."""
    path = tmp_path / "store"
    with FilePageStore.create(path, small_config()) as store:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        sizes = {file.name: file.stat().st_size for file in path.iterdir()}
        assert sum(sizes.values()) == store.disk_bytes
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}
        for version in range(4):
            take_step(store, version)
    assert sizes == {file.name: file.stat().st_size for file in path.iterdir()}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["store"]


def test_create_refuses_what_is_there(tmp_path: Path) -> None:
    """Goal: nothing is overwritten; an empty directory is taken."""
    FilePageStore.create(tmp_path / "store", small_config()).close()
    with pytest.raises(ConfigError, match="not empty"):
        FilePageStore.create(tmp_path / "store", small_config())
    (tmp_path / "empty").mkdir()
    FilePageStore.create(tmp_path / "empty", small_config()).close()
    for name in ("nothing", "."):
        with pytest.raises(ConfigError, match="holds no store"):
            FilePageStore.open(tmp_path / name)


def test_a_disk_too_small_is_refused_with_numbers(tmp_path: Path) -> None:
    """Goal: no half-made store, and the number that would work."""
    config = small_config(page_kinds=(0,) * 10**6, page_elems=(4096,) * 10**6)
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    if free > config.state_bytes * 2:
        config = small_config(page_kinds=(0,) * 10**7, page_elems=(4096,) * 10**7)
    with pytest.raises(StoreFullError, match=r"iB are needed, .* are free on the disk"):
        FilePageStore.create(tmp_path / "store", config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("durability", ["checkpoint", "always"])
def test_levels_that_are_not_built_are_refused(tmp_path: Path, durability: str) -> None:
    """Goal: no level promises what it does not hold."""
    with pytest.raises(ConfigError, match=durability):
        FilePageStore.create(tmp_path / "store", small_config(), durability=durability)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_flushes_follow_the_level(tmp_path: Path) -> None:
    """Goal: three flushes a step at level `step`, none at `process`; traffic is counted."""
    for durability, flushes in (("step", [1, 2]), ("process", [0, 0])):
        path = tmp_path / durability
        with FilePageStore.create(path, small_config(), durability=durability) as store:  # type: ignore[arg-type]
            take_step(store, 0)
            pages, records = store.stats, store._meta_io
            before = pages.flushes, records.flushes, pages.bytes_written
            take_step(store, 1)
            after = pages.flushes, records.flushes, pages.bytes_written
            assert pages.bytes_read == 0
            contents(store, 1)
        made = [later - earlier for earlier, later in zip(before, after, strict=True)]
        assert made[:2] == flushes
        assert made[2] in (118784, 118784 - 4096 + 832)
        assert pages.bytes_read > 100_000


def test_a_failed_read_names_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an unreadable page is an error of that page; the store goes on."""
    with FilePageStore.create(tmp_path / "store", small_config()) as store:
        take_step(store, 0)

        def failing(*_: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", failing)
            with pytest.raises(StateError, match=r"page 5 of side0\.dat cannot be read"):
                read(store, 5, 0)
        assert read(store, 5, 0) == record(store, 5, 0)


@pytest.mark.parametrize("direct", [True, False])
def test_short_transfers_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    """Goal: any range can be read back, however the system cuts transfers up.
    Method: random ranges and buffer places; each system call moves a part of what it is given."""
    path = tmp_path / "file"
    size = 3 * 1024 * 1024
    path.write_bytes(bytes(size))
    mode = probe_direct_io(path) if direct else BUFFERED_BY_CHOICE
    if direct and not mode.enabled:
        pytest.skip(mode.reason)
    rng = np.random.default_rng(2)
    unit = 4096 if direct else 1000
    preadv, pwritev = os.preadv, os.pwritev

    def some(view: memoryview) -> memoryview:
        return view[: max(unit, len(view) // 2 // unit * unit)]

    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [some(views[0])], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: pwritev(fd, [some(views[0])], at))
    counter = IoCounter()
    file = BlockFile(path, mode, counter, synced=True)
    data = rng.bytes(size - 100)
    for shift in (0, 1):
        source = aligned_buffer(len(data) + shift)[shift:]
        source[:] = data
        file.write(0, source)
        for _ in range(20):
            start, stop = sorted(rng.integers(0, len(data), 2).tolist())
            into = aligned_buffer(stop - start + shift)[shift:]
            file.read(start, into)
            assert into == data[start:stop]
    assert counter.bytes_written >= 2 * len(data)
    with pytest.raises(PageCorruptError, match="cut short"):
        file.read(size - 10, memoryview(bytearray(20)))
    file.close()


def test_direct_io_is_reported(tmp_path: Path) -> None:
    """Goal: the caller can see which way the bytes go, and why."""
    with FilePageStore.create(tmp_path / "a", small_config()) as store:
        assert ("direct I/O" in store.direct.reason) or not store.direct.enabled
    with FilePageStore.create(tmp_path / "b", small_config(), direct_io=False) as store:
        assert not store.direct.enabled
        assert "not asked for" in store.direct.reason
    missing = probe_direct_io(tmp_path / "missing")
    assert not missing.enabled
    assert "failed" in missing.reason
