"""A store that ends in the middle: what crash images and system calls do not show.

Power cuts and kills in all orders: `python -m tests.crash_images` and `python -m tests.syscalls`,
a share of each in `test_campaigns.py` and `test_syscalls.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from luwu.base.errors import StateError
from luwu.base.failpoints import failpoint
from switch_emu.store import DecidedStep, FilePageStore
from switch_emu.store import directory as directory_module
from switch_emu.store import file as file_module
from tests.simulate.device import Device, simulated
from tests.suites.store_suite import contents, record, small_config, take_step, write_pages


def test_a_kill_while_a_store_is_filled_leaves_it_empty_or_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7. Goal: killed at any failpoint, it has the version of before, none, or one with all pages.
    Method: fill a store that holds a state, a page in each step; open a copy of every failpoint."""
    path = tmp_path / "store"
    expected: dict[int, list[bytes]] = {}
    images: list[Path] = []
    store = FilePageStore.create(path, small_config(), durability="process", direct_io=False)

    def take_image(place: str) -> None:
        images.append(shutil.copytree(path, tmp_path / f"image-{len(images)}"))

    with store:
        take_step(store, 0)
        expected[0] = contents(store, 0)
        monkeypatch.setattr(file_module, "failpoint", take_image)
        store.begin_filling(7)
        for page in range(7):
            store.fill(page, record(store, page, 7 + page))
            expected[8 + page] = [record(store, each, 8 + page) for each in range(7)]
            take_step(store, 8 + page, pages=range(page + 1))
        take_step(store, 15, pages=[])
        expected[15] = expected[14]
    monkeypatch.undo()
    found = []
    for image in images:
        with FilePageStore.open(image, durability="process", direct_io=False) as copied:
            found.append(-1 if copied.decided is None else copied.decided.version)
            if found[-1] >= 0:
                assert contents(copied, found[-1]) == expected[found[-1]]
            copied.begin_filling(20)  # whatever it holds, it can be filled
            copied.fill(0, record(copied, 0, 20))
    assert sorted(set(found)) == [-1, 0, 14, 15]
    assert found == sorted(found, key=[0, -1, 14, 15].index)


def test_a_failed_maker_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an error while a store is made leaves nothing behind."""

    def failing(place: str) -> None:
        failpoint(place)
        if place == "store.create.after_allocate":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory_module, "failpoint", failing)
    with pytest.raises(Exception, match="Nothing was left behind"):
        FilePageStore.create(tmp_path / "store", small_config())
    assert list(tmp_path.iterdir()) == []


def test_a_maker_flushes_in_the_right_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: files and directory are flushed before the rename, the parent after it.
    Method: note each fsync and rename with the path it concerns."""
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(fd: int) -> None:
        calls.append(Path(f"/proc/self/fd/{fd}").resolve().name)
        fsync(fd)

    def noted_rename(source: Path, target: Path) -> None:
        calls.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    FilePageStore.create(tmp_path / "store", small_config()).close()

    assert calls[-3:] == [".store.creating", "rename", tmp_path.name]
    assert set(calls[:-3]) >= {"CONFIG", "LOCK", "meta.dat", "side0.dat", "side1.dat"}


@pytest.fixture
def device() -> Iterator[Device]:
    """A formatted device of the simulated world."""
    with simulated():
        made = Device("crash", Random(11))
        made.make(small_config(store_uuid="5" * 32))
        yield made
        made.forget()


def test_a_failed_flush_stops_the_store_for_good(device: Device) -> None:
    """P5. Goal: a flush is never tried again: the second succeeds, and what it was to make durable
    is gone. Method: let one fail; the store accepts no more calls, and reopens one version back."""
    with device.open() as store:
        take_step(store, 0)
        write_pages(store, range(7), 1)
        device.arm("eio_flush")
        with pytest.raises(StateError, match="Input/output error"):
            store.prepare(DecidedStep(version=1, attempt=0))
        with pytest.raises(StateError, match="accepts no more calls"):
            store.prepare(DecidedStep(version=1, attempt=0))
    with device.open() as store:
        assert store.decided is not None
        assert store.decided.version == 0
        assert store.prepared is None


def test_opening_makes_durable_what_it_found(device: Device) -> None:
    """P2. Goal: what a killed process left in the page cache is decided after `open` for good.
    Method: steps without flushes, then open at level `step` and cut the power."""
    with device.open("process") as store:
        take_step(store, 0)
        write_pages(store, range(7), 1)
        store.prepare(DecidedStep(version=1, attempt=0))
    device.open().close()
    device.power_cut(lambda: "old")
    with device.open() as store:
        assert contents(store, 0) == [record(store, page, 0) for page in range(7)]
        store.decide(1, 0)
        assert contents(store, 1) == [record(store, page, 1) for page in range(7)]
