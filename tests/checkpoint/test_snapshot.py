"""`luwu snapshot`: a copy that is a state, at rest and while training goes on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError, PageCorruptError, StateError
from luwu.checkpoint import snapshot as snapshot_module
from luwu.checkpoint.snapshot import (
    snapshot_at_rest,
    snapshot_by_reflinks,
    snapshot_of_running,
)
from luwu.checkpoint.source import RunningState
from luwu.commands.main import main
from switch_emu.store import DecidedStep, FilePageStore
from switch_emu.store import directory as directory_module
from switch_emu.store.directory import NoReflinks, clone_store
from switch_emu.store.striped import StripedPages
from tests.checkpoint.test_export_running import part
from tests.helpers.exports import train, values_of
from tests.helpers.local_job import Job, plain
from tests.helpers.real_training import in_cluster
from tests.helpers.training_harness import one_thread  # noqa: F401 - for every test here
from tests.suites.store_suite import contents, record, small_config, take_step, write_pages


def has_reflinks(directory: Path) -> bool:
    """Whether the file system of a directory has them."""
    source, target = directory / "probe", directory / "probe-clone"
    source.write_bytes(b"x" * 4096)
    try:
        directory_module._clone(source, target)
    except NoReflinks:
        return False
    finally:
        source.unlink()
        target.unlink(missing_ok=True)
    return True


def by_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the file system has no reflinks."""

    def none(source: Path, target: Path) -> None:
        raise NoReflinks("not in this test")

    monkeypatch.setattr(snapshot_module, "clone_store", none)


@pytest.fixture(params=["reflinks", "copies"])
def how(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways, where the file system has both."""
    way: str = request.param
    if way == "copies":
        by_copies(monkeypatch)
    elif not has_reflinks(tmp_path):
        pytest.skip("this file system has no reflinks")
    return way


@pytest.mark.feature("luwu snapshot")
def test_at_rest(how: str, tmp_path: Path) -> None:
    """I2, I3. Goal: the copy holds all that the state does, is verified as whole, and training
    goes on from either to the same weights; the source is not touched.
    Method: two steps, a snapshot, the rest on the snapshot."""
    job, state, out = Job(), tmp_path / "state", tmp_path / "kept/out"
    train(job, state, tmp_path, stop_at=2)
    before = values_of(state)
    made = snapshot_at_rest(state, 1, out)
    assert (made.version, made.how) == (2, how)
    assert values_of(out) == before
    assert main(["verify", str(out), "--full"]) == 0
    assert train(job, out, tmp_path) == plain(job).digest
    assert values_of(state) == before
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_at_rest_with_what_was_attached(how: str, tmp_path: Path) -> None:
    """I3. Goal: schedulers, cursors and generators of every rank are in the copy."""
    state, out = tmp_path / "state", tmp_path / "out"
    whole = in_cluster(tmp_path, part(0, 4), world_size=2)
    in_cluster(tmp_path, part(0, 2), world_size=2, state=state)
    snapshot_at_rest(state, 1, out)
    shutil.rmtree(state)
    found = in_cluster(tmp_path, part(2, 4), world_size=2, state=out, resume=True)
    assert (found.digest, found.results) == (whole.digest, whole.results)


def test_a_state_in_use_or_damaged_is_refused(how: str, tmp_path: Path) -> None:
    """Goal: no half copy: an error, and nothing left behind."""
    state, out = tmp_path / "state", tmp_path / "out"
    with FilePageStore.create(state, small_config()) as store:
        take_step(store, 0)
        with pytest.raises(ConfigError, match="is open in process"):
            snapshot_at_rest(state, 1, out)
    with (state / "side0.dat").open("r+b") as file:
        file.seek(100)
        file.write(b"rot")
    with pytest.raises(StateError, match=r"page 0 of side0\.dat"):
        snapshot_at_rest(state, 1, out)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    with pytest.raises(ConfigError, match="exists"):
        snapshot_at_rest(state, 1, state)


def test_several_nodes_at_rest(how: str, tmp_path: Path) -> None:
    """I2. Goal: one version of all nodes, though one of them had not heard of its decision."""
    state, out = tmp_path / "state", tmp_path / "out"
    for number in range(3):
        with FilePageStore.create(state / f"node-{number}", small_config()) as store:
            take_step(store, 0)
            write_pages(store, range(7), 1)
            store.prepare(DecidedStep(version=1, attempt=0))
            if number != 1:
                store.decide(1, 0)
            if number == 2:  # it has begun the next step, whose decision nobody has seen
                write_pages(store, range(7), 2)
                store.prepare(DecidedStep(version=2, attempt=0))
    made = snapshot_at_rest(state, 3, out)
    assert (made.version, made.how, made.optimizer_nodes) == (1, how, 3)
    with StripedPages(out, 3) as pages:
        assert pages.decided is not None
        assert pages.decided.version == 1
    for number in range(3):
        with FilePageStore.open(out / f"node-{number}") as store:
            assert contents(store, 1) == [record(store, page, 1) for page in range(7)]
            assert store.prepared is None
    assert main(["verify", str(out), "--full"]) == 0


@pytest.mark.feature("luwu snapshot")
@pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])
def test_while_training_goes_on(has_switch: bool, tmp_path: Path) -> None:
    """I2, I3. Goal: what was held after step 2 and copied after step 5 is step 2, with what was
    attached; training goes on from the copy to the weights of the run that was not disturbed."""
    out, state = tmp_path / "out", tmp_path / "state"
    changes: dict[str, Any] = {"world_size": 2, "has_switch": has_switch}
    plain_run = in_cluster(tmp_path, part(0, 5), **changes)

    def copy(source: RunningState) -> None:
        made = snapshot_of_running(source, out)
        assert (made.version, made.how) == (2, "copies")

    work = part(0, 5, export_at=2, export=copy)
    disturbed = in_cluster(tmp_path, work, state=state, **changes)
    assert disturbed.digest == plain_run.digest
    assert main(["verify", str(out), "--full"]) == 0
    found = in_cluster(tmp_path, part(2, 5), state=out, resume=True, **changes)
    assert (found.digest, found.results) == (plain_run.digest, plain_run.results)


def test_clones_of_a_running_store_are_made_again_until_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2. Goal: files that were cloned while steps went on are no snapshot; the next are.
    Method: steps between the clones of the record and of the pages, twice. Files are copied, which
    takes what a reflink would show, so this runs on any file system."""
    state, out = tmp_path / "state", tmp_path / "out"
    tries: list[int] = []
    with FilePageStore.create(state, small_config()) as store:
        take_step(store, 0)
        version = 0

        def copy(source: Path, target: Path) -> None:
            nonlocal version
            shutil.copyfile(source, target)
            if target.name == "meta.dat":
                tries.append(version)
                for _ in range(2 if len(tries) < 3 else 1):
                    version += 1
                    take_step(store, version)

        monkeypatch.setattr(directory_module, "_clone", copy)
        made = snapshot_by_reflinks(state, 1, out)
    assert made is not None
    assert (len(tries), made.version) == (3, 4)
    with FilePageStore.open(out) as copied:
        assert contents(copied, 4) == [record(copied, page, 4) for page in range(7)]


def test_a_prepared_step_is_not_in_the_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2. Goal: the newest decided step, not one that nobody was told of."""
    monkeypatch.setattr(directory_module, "_clone", shutil.copyfile)
    state, out = tmp_path / "state", tmp_path / "out"
    with FilePageStore.create(state, small_config()) as store:
        take_step(store, 0)
        take_step(store, 1)
        write_pages(store, range(7), 2)
        store.prepare(DecidedStep(version=2, attempt=0))
        made = snapshot_by_reflinks(state, 1, out)
    assert made is not None
    assert made.version == 1
    with FilePageStore.open(out) as copied:
        assert copied.prepared is None
        assert contents(copied, 1) == [record(copied, page, 1) for page in range(7)]


def test_a_file_system_without_reflinks_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_copies(monkeypatch)
    with FilePageStore.create(tmp_path / "state", small_config()) as store:
        take_step(store, 0)
        assert snapshot_by_reflinks(tmp_path / "state", 1, tmp_path / "out") is None
    assert not (tmp_path / "out").exists()


def test_reflinks_share_nothing_that_is_written(tmp_path: Path) -> None:
    """Goal: the real call: a clone keeps its bytes when the source is written over."""
    if not has_reflinks(tmp_path):
        pytest.skip("this file system has no reflinks")
    state, out = tmp_path / "state", tmp_path / "out"
    with FilePageStore.create(state, small_config()) as store:
        take_step(store, 0)
        out.mkdir()
        clone_store(state, out)
        for version in range(1, 4):
            take_step(store, version)
    with FilePageStore.open(out) as copied:
        assert contents(copied, 0) == [record(copied, page, 0) for page in range(7)]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: what was made, how, and how to go on; what is no state is refused."""
    with FilePageStore.create(tmp_path / "state", small_config()) as store:
        take_step(store, 0)
    out = str(tmp_path / "out")
    assert main(["snapshot", str(tmp_path / "state"), out]) == 0
    said = capsys.readouterr().out
    assert f"{out}: step 0, by " in said
    assert f"luwu run --state {out} --resume" in said
    assert main(["snapshot", str(tmp_path), str(tmp_path / "other")]) == 2
    assert "holds no state" in capsys.readouterr().err
    assert main(["snapshot", str(tmp_path)]) == 2
    assert os.listdir(tmp_path / "out")


def test_damage_is_not_copied_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3. Goal: the damaged page is named, not copied."""
    by_copies(monkeypatch)
    with FilePageStore.create(tmp_path / "state", small_config()) as store:
        take_step(store, 0)
    with (tmp_path / "state/side0.dat").open("r+b") as file:
        file.write(b"rot")
    with pytest.raises(PageCorruptError, match="page 0"):
        snapshot_at_rest(tmp_path / "state", 1, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_clones_of_several_nodes_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I2. Goal: where node 1 has gone on between two clones, they are made again, and then are one
    version: what node 0 has decided."""
    monkeypatch.setattr(directory_module, "_clone", shutil.copyfile)
    state, out = tmp_path / "state", tmp_path / "out"
    made: list[FilePageStore] = []
    for number in range(2):
        made.append(FilePageStore.create(state / f"node-{number}", small_config()))
        take_step(made[-1], 0)
    tries: list[int] = []

    def clone(source: Path, target: Path) -> None:
        clone_store(source, target)
        if source.name == "node-0":
            tries.append(len(tries))
            if len(tries) == 1:
                for store in made:
                    take_step(store, 1)

    monkeypatch.setattr(snapshot_module, "clone_store", clone)
    found = snapshot_by_reflinks(state, 2, out)
    for store in made:
        store.close()
    assert found is not None
    assert (len(tries), found.version, found.optimizer_nodes) == (2, 1, 2)
    with StripedPages(out, 2) as pages:
        assert pages.decided is not None
        assert pages.decided.version == 1
