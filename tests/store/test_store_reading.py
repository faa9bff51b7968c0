"""A store that is only read, and one whose first version is not 0: for exports and imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError, StateError
from switch_emu.store import DecidedStep, FilePageStore
from switch_emu.store.geometry import Geometry
from switch_emu.store.manifest import copy_offset
from tests.suites.store_suite import contents, small_config, take_step, write_pages

ROOT = Path(__file__).resolve().parents[2]


def used_store(path: Path) -> list[bytes]:
    """A store after version 1; the contents of it."""
    with FilePageStore.create(path, small_config()) as store:
        take_step(store, 0)
        take_step(store, 1)
        return contents(store, 1)


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_reader_changes_no_byte(tmp_path: Path) -> None:
    """Goal: the decided version is there, and afterwards every file is as it was, the generation
    too; a damaged copy of the manifest is told and left alone."""
    expected = used_store(tmp_path / "store")
    shape = Geometry(small_config()).table
    with open(tmp_path / "store" / "meta.dat", "r+b") as file:
        file.seek(copy_offset(shape, 1, 0))
        file.write(b"rotten")
    before = files_of(tmp_path / "store")

    with FilePageStore.open(tmp_path / "store", read_only=True) as store:
        assert contents(store, 1) == expected
        assert (store.generation, store.decided.version) == (1, 1)
        assert store.notes == ("meta.dat: copy 0 of a manifest is damaged",)
        for change in (
            lambda: store.record_attempt(5),
            lambda: write_pages(store, [0], 2),
            lambda: store.prepare(DecidedStep(version=2, attempt=0)),
            lambda: store.decide(2, 0),
            lambda: store.abort(0),
        ):
            with pytest.raises(StateError, match="opened to be read only"):
                change()

    assert files_of(tmp_path / "store") == before


def test_readers_share_a_store_and_a_node_has_it_alone(tmp_path: Path) -> None:
    """Goal: two readers at once; a node excludes readers and another node, and each is told of
    whom; refused openings count nothing.
    Method: the process that LOCK names is this one, then one that has ended."""
    path = tmp_path / "store"
    used_store(path)
    with (
        FilePageStore.open(path, read_only=True),
        FilePageStore.open(path, read_only=True),
        pytest.raises(ConfigError, match=f"process {os.getpid()} on .*a second node"),
    ):
        FilePageStore.open(path)
    with FilePageStore.open(path) as store:
        for read_only, said in ((False, "a second node"), (True, "Wait until it has ended")):
            with pytest.raises(ConfigError, match=f"process {os.getpid()} on .*{said}"):
                FilePageStore.open(path, read_only=read_only)
        assert store.generation == 2
    with FilePageStore.open(path) as store:
        assert store.generation == 3

    program = (
        "import sys; from pathlib import Path; from switch_emu.store import FilePageStore\n"
        "FilePageStore.open(Path(sys.argv[1])).close()"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, check=True)
    with (
        FilePageStore.open(path, read_only=True),
        pytest.raises(ConfigError, match="another process, which reads it"),
    ):
        FilePageStore.open(path)


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "skipped"])
def test_a_store_may_begin_with_any_version(applied: bool, tmp_path: Path) -> None:
    """Goal: the first version is the one asked for, with all pages, also if its record is that of
    a skipped step; the next follows it."""
    path = tmp_path / "store"
    step = DecidedStep(version=7, attempt=3, applied=applied)
    with FilePageStore.create(path, small_config(), first_version=7) as store:
        store.record_attempt(3)
        write_pages(store, range(6), 7, attempt=3)
        with pytest.raises(StateError, match="version 7 needs all 7 pages, 1 are missing"):
            store.prepare(step)
        write_pages(store, [6], 7, attempt=3)
        store.prepare(step)
        store.decide(7, 3)
        expected = contents(store, 7)
    with FilePageStore.open(path) as store:
        assert (store.decided, store.attempt) == (step, 3)
        assert contents(store, 7) == expected
        write_pages(store, [2], 8, attempt=3)
        store.prepare(DecidedStep(version=8, attempt=3))
        store.decide(8, 3)
        assert contents(store, 8)[2] != expected[2]
