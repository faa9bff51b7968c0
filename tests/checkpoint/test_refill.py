"""The directory of a lost optimizer node, made again from the nodes that hold the same pages."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from luwu.base import failpoints
from luwu.base.errors import ConfigError, StateError
from luwu.base.failpoints import FailpointError, parse_failpoints
from luwu.checkpoint.refill import refill
from luwu.checkpoint.source import description_of
from luwu.commands.main import main
from luwu.layout import Share
from luwu.protocol.epoch import UNKNOWN_EPOCHS
from luwu.wire.description import Description
from switch_emu.store import FilePageStore
from switch_emu.store.attachments import AttachmentFiles, read_attachments
from switch_emu.store.records import RECORD_KEY
from switch_emu.store.striped import StripedPages, node_directory
from tests.evidence import states
from tests.node.test_nodes import make_state, write_version
from tests.suites.store_suite import contents


def content(state: Path, number: int, count: int) -> tuple[int | None, list[bytes]]:
    """The decided version of a node, and the records of all its pages."""
    with FilePageStore.open(node_directory(state, number, count), read_only=True) as store:
        decided = store.decided
        return (
            (None, []) if decided is None else (decided.version, contents(store, decided.version))
        )


def step_ahead(
    state: Path, job: Description, replicas: int, decided: set[int], ready: set[int]
) -> None:
    """Version 2 is prepared at some nodes, and decided at some of these."""
    count = job.layout.optimizer_nodes
    for number in ready:
        path = node_directory(state, number, count)
        with FilePageStore.open(path, durability="none") as store:
            write_version(store, job, number, 2, replicas)
            if number in decided:
                store.decide(2, store.attempt)


def go_on(state: Path, job: Description, count: int, epoch: tuple[int, int, int]) -> None:
    """Version 2 is decided at the nodes that count in this epoch."""
    for number in range(count):
        if epoch[1] >> number & 1:
            path = node_directory(state, number, count)
            with FilePageStore.open(path, durability="none") as store:
                store.record_attempt(store.attempt + 1, epoch)
                write_version(store, job, number, 2, 2)
                store.decide(2, store.attempt)


@pytest.mark.parametrize(
    ("count", "replicas", "lost"),
    [(2, 2, (0,)), (2, 2, (1,)), (3, 2, (0,)), (3, 2, (1,)), (3, 3, (0, 2))],
)
def test_lost_directories_are_made_again(
    tmp_path: Path, count: int, replicas: int, lost: tuple[int, ...]
) -> None:
    """I2, I3. Goal: each has the very pages that it had, at the same version; with three replicas
    one directory is enough to make both others."""
    make_state(tmp_path, count, replicas=replicas)
    before = [content(tmp_path, number, count) for number in lost]
    for number in lost:
        shutil.rmtree(node_directory(tmp_path, number, count))
    given_up = lost if 2 * len(lost) >= count else ()
    found = refill(tmp_path, without=given_up)
    assert (found.version, found.nodes, found.given_up) == (1, lost, given_up)
    assert [content(tmp_path, number, count) for number in lost] == before
    assert sorted(each.name for each in tmp_path.iterdir()) == [f"node-{n}" for n in range(count)]


@pytest.mark.parametrize(
    ("lost", "decided", "ready", "version"),
    [
        (0, set(), {1, 2}, 1),  # what was announced was decided at all of them
        (0, {1}, {1, 2}, 2),
        (1, {0}, {0, 2}, 2),
        (1, set(), {0, 2}, 1),
    ],
)
def test_what_is_decided(
    tmp_path: Path, lost: int, decided: set[int], ready: set[int], version: int
) -> None:
    """I2. Goal: no decided step is lost with a directory, and none becomes decided that was not."""
    job = make_state(tmp_path, 3, replicas=2)
    shutil.rmtree(node_directory(tmp_path, lost, 3))
    step_ahead(tmp_path, job, 2, decided, ready)
    assert refill(tmp_path).version == version
    assert content(tmp_path, lost, 3)[0] == version


def test_the_directory_of_a_node_that_was_left_out_is_replaced(tmp_path: Path) -> None:
    """E4. Goal: the job has gone on without it for a step; then all nodes count again."""
    job = make_state(tmp_path, 3, replicas=2)
    go_on(tmp_path, job, 3, (7, 0b101, 3))
    expected = content(tmp_path, 2, 3)
    with StripedPages(tmp_path, 3, None) as pages:
        assert sorted(pages.stores) == [0, 2]
    assert refill(tmp_path).nodes == (1,)
    assert content(tmp_path, 2, 3) == expected
    assert content(tmp_path, 1, 3)[0] == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["node-0", "node-1", "node-2"]
    for number in range(3):
        with FilePageStore.open(node_directory(tmp_path, number, 3), read_only=True) as store:
            assert store.epoch == (8, 0b111, 3)
    with pytest.raises(ConfigError, match="nothing is to be filled"):
        refill(tmp_path)


@pytest.mark.feature("lost optimizer nodes that held the last steps")
def test_a_node_that_may_be_ahead_is_given_up_by_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E3. Goal: one of two cannot know whether the other went on alone: nothing is done without the
    operator's word, who is told which steps are lost; from then on the other counts no more, and
    is no part of the state, if it is found again. Method: node 1 did go on alone, for a step."""
    job = make_state(tmp_path, 2, replicas=2)
    away, there = tmp_path.with_name("found"), node_directory(tmp_path, 1, 2)
    go_on(tmp_path, job, 2, (5, 0b10, 0))
    there.rename(away)
    before = content(tmp_path, 0, 2)
    with pytest.raises(ConfigError, match=r"at step 1, and node 1 may have gone .* --without 1$"):
        refill(tmp_path)
    with pytest.raises(ConfigError, match=r"--without 0: .* has the directory of node 0"):
        refill(tmp_path, without=(0, 1))
    assert [content(tmp_path, 0, 2), there.exists()] == [before, False]
    assert main(["refill", str(tmp_path), "--without", "1"]) == 0
    assert "steps from 1 on that only node 1 had decided are lost" in capsys.readouterr().out
    for number in range(2):
        with FilePageStore.open(node_directory(tmp_path, number, 2), read_only=True) as store:
            assert store.epoch == (UNKNOWN_EPOCHS, 0b11, 0)
    shutil.rmtree(there)
    away.rename(there)
    with pytest.raises(
        StateError, match=r"version 2 \(attempt 1\) is decided, node 0 has 1 \(attempt 0\)"
    ):
        StripedPages(tmp_path, 2, None)


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_refill_that_was_killed_is_made_again(tmp_path: Path, is_removed: bool) -> None:
    """I1. Goal: what it left in the place of a new directory is no obstacle, before and after the
    older directory was removed."""
    make_state(tmp_path, 2, replicas=2)
    with FilePageStore.open(node_directory(tmp_path, 0, 2), durability="none") as store:
        store.record_attempt(store.attempt + 1, (7, 0b01, 3))
    older = node_directory(tmp_path, 1, 2)
    shutil.copytree(older, tmp_path / "node-1.refilled")
    if is_removed:
        shutil.rmtree(older)
    assert refill(tmp_path).nodes == (1,)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["node-0", "node-1"]


@pytest.mark.parametrize(("count", "before", "after"), [(2, 1, 2), (3, 1, 2), (3, 3, 1), (3, 2, 3)])
def test_another_number_of_replicas(tmp_path: Path, count: int, before: int, after: int) -> None:
    """I2, I3. Goal: each node has the very pages of a state that was made with so many, at the same
    version, and all count."""
    state = tmp_path / "state"
    make_state(state, count, replicas=before)
    make_state(tmp_path / "expected", count, replicas=after)
    found = refill(state, replicas=after)
    assert (found.version, found.replicas, found.nodes) == (1, after, (*range(count),))
    for number in range(count):
        assert content(state, number, count) == content(tmp_path / "expected", number, count)
    assert sorted(each.name for each in state.iterdir()) == [f"node-{n}" for n in range(count)]
    with pytest.raises(ConfigError, match=f"each page in {after}; nothing is to be filled"):
        refill(state, replicas=after)
    with pytest.raises(ConfigError, match=f"{count + 1} of each page asked for"):
        refill(state, replicas=count + 1)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_change_of_replicas_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    """I1. Goal: no page is lost, wherever it is killed: what is left is a whole state of the same
    version, and the same command goes on from there. Method: it ends between the two renames of the
    first or the second directory."""
    state = tmp_path / "state"
    make_state(state, 2, replicas=1)
    make_state(tmp_path / "expected", 2, replicas=2)
    armed = parse_failpoints(f"refill.between_places=raise@{passes}")
    monkeypatch.setattr(failpoints, "_armed", armed)
    with pytest.raises(FailpointError):
        refill(state, replicas=2)
    monkeypatch.setattr(failpoints, "_armed", {})
    if passes == 2:  # one has two of each page now, the other one
        with pytest.raises(ConfigError, match="give --replicas 2 or --replicas 1"):
            refill(state)
        with StripedPages(state, 2, None) as pages:
            description_of(pages.configs, state)
    assert refill(state, replicas=2).version == 1
    for number in range(2):
        assert content(state, number, 2) == content(tmp_path / "expected", number, 2)
    assert sorted(each.name for each in state.iterdir()) == ["node-0", "node-1"]


def test_what_workers_attached_is_made_again(tmp_path: Path) -> None:
    """I2. Goal: an owner of stripe 0 gets the pieces that are kept beside the step, too."""
    job = make_state(tmp_path, 2, replicas=2)
    directory = node_directory(tmp_path, 1, 2)
    with FilePageStore.open(directory, durability="none") as store:
        write_version(store, job, 1, 2, 2)
        prepared = store.prepared
        assert prepared is not None
        store.abort(prepared.attempt)
        store.record_attempt(prepared.attempt + 1)
        share = Share(job.layout, 1, 2)
        assert share.stripes == (1, 0)
        with AttachmentFiles(directory, synced=False, decided=store.decided) as files:
            files.put(2, store.attempt, 0, 0, memoryview(b"of rank 0"))
            kept = files.seal(2, store.attempt)
        step = replace(prepared, attempt=store.attempt, extra={RECORD_KEY: kept}, applied=False)
        store.prepare(step)
        store.decide(2, store.attempt)
    shutil.rmtree(node_directory(tmp_path, 0, 2))
    assert refill(tmp_path, without=(0,)).version == 2
    first = node_directory(tmp_path, 0, 2)
    with FilePageStore.open(first, read_only=True) as store:
        assert store.decided is not None
        assert read_attachments(first, store.decided) == {0: b"of rank 0"}


def test_a_state_from_before_there_were_epochs(tmp_path: Path) -> None:
    """Goal: all of its nodes count. Method: the state that an older version wrote."""
    states.unpack("two-nodes", tmp_path)
    with pytest.raises(ConfigError, match="nothing is to be filled"):
        refill(tmp_path / "state")


def test_what_cannot_be_filled_is_rejected(tmp_path: Path) -> None:
    """I6. Goal: nothing missing, no state, and pages of which no copy is left: each by name."""
    with pytest.raises(ConfigError, match="no directory of an optimizer node"):
        refill(tmp_path)
    make_state(tmp_path, 3, replicas=2)
    with pytest.raises(ConfigError, match="all 3 optimizer nodes, and each page in 2; nothing"):
        refill(tmp_path)
    for number in (0, 1):
        shutil.rmtree(node_directory(tmp_path, number, 3))
    with pytest.raises(ConfigError, match=r"all copies of some pages are lost; nodes 2 are left"):
        refill(tmp_path)
