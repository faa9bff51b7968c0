"""Processes that die inside the store: what the next opening finds.

Two ways: a copy of the directory at every failpoint (what any kill leaves behind), and real
processes that are killed there. Power cuts, which keep an arbitrary part of what was not flushed:
`test_store_power_cut.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from luwu.base.failpoints import failpoint
from switch_emu.store import DecidedStep, FilePageStore
from switch_emu.store import directory as directory_module
from switch_emu.store import file as file_module
from tests.suites.store_suite import contents, record, small_config, take_step, write_pages

ROOT = Path(__file__).resolve().parents[2]

ABORTED_ATTEMPT = 1
"""The attempt that the story aborts after it was prepared."""

Expected = dict[int, list[bytes]]


def story(store: FilePageStore, expected: Expected, at: Callable[[str], None]) -> None:
    """A life in which everything happens: steps, a skip, aborts before and after prepare.

    `expected` gets the records of each version before it is decided. Versions are written under
    several attempts, so it also matters that the right attempt is found.
    """

    def step(version: int, attempt: int, pages: list[int], *, applied: bool = True) -> None:
        before = expected.get(version - 1, [])
        expected[version] = [
            record(store, page, version, attempt) if page in pages and applied else before[page]
            for page in range(7)
        ]
        write_pages(store, pages, version, attempt)
        store.prepare(DecidedStep(version=version, attempt=attempt, applied=applied))
        store.decide(version, attempt)
        at(f"story.decided_{version}")

    step(0, 0, list(range(7)))
    step(1, 0, list(range(7)))
    step(2, 0, [0, 3, 4], applied=False)
    write_pages(store, [0, 1, 5], 3, 0)
    store.record_attempt(1)
    store.abort(0)
    step(3, 1, [1, 2, 5])
    write_pages(store, range(7), 4, 1)
    store.prepare(DecidedStep(version=4, attempt=1))
    store.record_attempt(2)
    store.abort(1)
    step(4, 2, [0, 2, 6])
    step(5, 2, list(range(7)))


@dataclass(frozen=True)
class Known:
    """What a store had promised at some instant."""

    decided: int = -1
    attempt: int = 0
    prepared: DecidedStep | None = None

    @classmethod
    def of(cls, store: FilePageStore) -> Known:
        """What it promises now."""
        decided = -1 if store.decided is None else store.decided.version
        return cls(decided=decided, attempt=store.attempt, prepared=store.prepared)


def check_image(path: Path, expected: Expected, known: Known) -> int:
    """Open what a crash left; returns the version found: the decided one or the one after it.

    Everything of that version must be there, and the store must be able to go on.
    """
    with FilePageStore.open(path, durability="process", direct_io=False) as store:
        found = -1 if store.decided is None else store.decided.version
        assert found in (known.decided, known.decided + 1)
        assert store.attempt >= known.attempt
        if known.prepared is not None and found == known.decided:
            was_aborted = known.prepared.attempt == ABORTED_ATTEMPT
            assert store.prepared == known.prepared or (was_aborted and store.prepared is None)
        if found >= 0:
            assert contents(store, found) == expected[found]
        prepared = store.prepared
        if prepared is not None:
            assert prepared.version == found + 1
            contents(store, prepared.version)  # verified page by page
            store.abort(prepared.attempt)
        store.record_attempt(store.attempt + 1)
        take_step(store, found + 1, attempt=store.attempt)
        after = contents(store, found + 1)
        assert after == [record(store, page, found + 1, store.attempt) for page in range(7)]
    return found


class Watch:
    """Stands at every failpoint; keeps what the store had promised there and takes images."""

    def __init__(self, store: FilePageStore, take_images: Callable[[str], list[Path]]) -> None:
        self._store = store
        self._take_images = take_images
        self.images: list[tuple[str, Path, Known]] = []

    def __call__(self, place: str) -> None:
        known = Known.of(self._store)
        self.images += [(place, image, known) for image in self._take_images(place)]


@pytest.mark.parametrize("direct_io", [True, False])
def test_a_kill_anywhere_leaves_a_whole_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct_io: bool
) -> None:
    """P1, P2, P5. Goal: killed at any failpoint, the store is at the old or the new version.
    Method: copy the directory at every failpoint of a long story, open every copy."""
    path = tmp_path / "store"
    expected: Expected = {}
    image_numbers = count()

    def take_image(place: str) -> list[Path]:
        return [shutil.copytree(path, tmp_path / f"image-{next(image_numbers)}")]

    store = FilePageStore.create(path, small_config(), durability="process", direct_io=direct_io)
    watch = Watch(store, take_image)
    monkeypatch.setattr(file_module, "failpoint", watch)
    with store:
        story(store, expected, watch)
    with FilePageStore.open(path):
        pass
    monkeypatch.undo()

    found = [(place, check_image(image, expected, known)) for place, image, known in watch.images]
    places = {place for place, _ in found} | {"store.before_filling"}  # that is another story
    assert places >= set(documented_failpoints("store", "store.create."))
    assert ("store.after_decided", 5) in found  # decided on disk, not yet announced
    assert ("store.before_decide", 4) in found


def test_a_kill_while_a_store_is_filled_leaves_it_empty_or_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7. Goal: killed at any failpoint, it has the version of before, none, or one with all pages.
    Method: fill a store that holds a state, a page in each step; open a copy of every failpoint."""
    path = tmp_path / "store"
    expected: Expected = {}
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


def documented_failpoints(prefix: str, without: str) -> list[str]:
    """The names in the module docstring."""
    assert file_module.__doc__ is not None
    names = re.findall(r"store\.[a-z_.]+[a-z]", file_module.__doc__.split("Failpoints:")[1])
    return [name for name in names if name.startswith(prefix) and not name.startswith(without)]


def test_every_failpoint_is_documented() -> None:
    """Goal: the list in the docstring is the list in the code."""
    in_code = {
        name
        for module in (file_module, directory_module)
        for name in re.findall(r'failpoint\("([^"]+)"\)', Path(str(module.__file__)).read_text())
    }
    assert in_code == set(documented_failpoints("store", "none"))


PROGRAM = """
import sys
from pathlib import Path
from switch_emu.store import FilePageStore
from tests.suites.store_suite import small_config
from tests.unit.test_store_crash import story
path = Path(sys.argv[1])
store = FilePageStore.create(path, small_config(store_uuid="5" * 32))
expected = {}
story(store, expected, lambda place: print(place, flush=True))
"""


@pytest.mark.parametrize(
    "failpoints",
    [
        "store.after_page_write@17",
        "store.before_data_flush@2",
        "store.between_manifests@4",
        "store.after_prepared@3",
        "store.before_meta_flush@9",
        "store.after_decided@2",
        "store.after_abort@1",
    ],
)
def test_a_killed_process_loses_nothing_decided(tmp_path: Path, failpoints: str) -> None:
    """P2. Goal: what a process printed as decided is there after SIGKILL, bit for bit.
    Method: a real process, killed by a failpoint; the same story in memory says what to expect."""
    place, _, nth = failpoints.partition("@")
    result = run_program(tmp_path / "store", f"{place}=kill@{nth}")
    assert result.returncode == -signal.SIGKILL
    decided = result.stdout.count("story.decided_") - 1
    expected: Expected = {}
    with FilePageStore.create(
        tmp_path / "reference", small_config(), durability="process"
    ) as reference:
        story(reference, expected, lambda place: None)
    check_image(tmp_path / "store", expected, Known(decided=decided))


@pytest.mark.parametrize(
    "name", ["before_files", "after_config", "after_allocate", "before_rename", "after_rename"]
)
def test_a_killed_maker_leaves_no_half_store(tmp_path: Path, name: str) -> None:
    """Goal: a store is made as a whole or not at all, and the next maker cleans up.
    Method: kill the process that creates at each of its failpoints, then open and create."""
    path = tmp_path / "store"
    result = run_program(path, f"store.create.{name}=kill")
    assert result.returncode == -signal.SIGKILL

    if name == "after_rename":
        with FilePageStore.open(path) as store:
            assert store.decided is None
            take_step(store, 0)
        return
    with pytest.raises(ConfigError, match="holds no store"):
        FilePageStore.open(path)
    with FilePageStore.create(path, small_config()) as store:
        take_step(store, 0)
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


def run_program(path: Path, failpoints: str) -> subprocess.CompletedProcess[str]:
    """The story in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        cwd=ROOT,
        env={**os.environ, "LUWU_FAILPOINTS": failpoints},
        check=False,
        capture_output=True,
        text=True,
    )


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
