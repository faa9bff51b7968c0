"""`luwu snapshot`: a copy that is a state. (While training goes on: `test_export_running.py`.)"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError, StateError
from luwu.checkpoint.snapshot import Snapshot, take_snapshot
from luwu.checkpoint.source import RestingState
from luwu.commands.main import main
from switch_emu.store import FilePageStore
from tests.checkpoint.test_refill import go_on
from tests.helpers.exports import flip
from tests.node.test_nodes import make_state, write_version
from tests.suites.store_suite import contents


def snapshot(state: Path, out: Path) -> Snapshot:
    """That of a state at rest."""
    with RestingState(state) as source:
        return take_snapshot(source, out)


def test_a_state_in_use_or_damaged_is_refused(tmp_path: Path) -> None:
    """P3. Goal: no half copy: an error that names the damaged page, and nothing left behind."""
    state, out = tmp_path / "state", tmp_path / "out"
    make_state(state, 1)
    with FilePageStore.open(state), pytest.raises(ConfigError, match="is open in process"):
        snapshot(state, out)
    flip(state / "side1.dat", 100)
    with pytest.raises(StateError, match=r"page 0 of side1\.dat"):
        snapshot(state, out)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    with pytest.raises(ConfigError, match="exists"):
        snapshot(state, state)


def test_several_nodes_at_rest(tmp_path: Path) -> None:
    """I2. Goal: one version of all nodes, though one of them had not heard of its decision and
    another has begun the next step, whose decision nobody has seen."""
    state, out = tmp_path / "state", tmp_path / "out"
    job = make_state(state, 3, last_is_prepared=True)
    with FilePageStore.open(state / "node-1") as store:
        expected = contents(store, 1)
        write_version(store, job, 1, 2)
    made = snapshot(state, out)
    assert (made.version, made.optimizer_nodes) == (1, 3)
    with FilePageStore.open(out / "node-1") as store:
        assert contents(store, 1) == expected
    for number in range(3):
        with FilePageStore.open(out / f"node-{number}") as store:
            assert store.decided is not None
            assert (store.decided.version, store.prepared) == (1, None)
    assert main(["verify", str(out), "--full"]) == 0


def test_a_node_that_was_left_out_has_its_pages_in_a_snapshot(tmp_path: Path) -> None:
    """E4. Goal: a job that went on without a node is copied as it is, with all of its nodes."""
    state, out = tmp_path / "state", tmp_path / "out"
    go_on(state, make_state(state, 3, replicas=2), 3, (7, 0b101, 3))
    with FilePageStore.open(state / "node-2", read_only=True) as store:
        expected = contents(store, 2)
    assert snapshot(state, out).version == 2
    with FilePageStore.open(out / "node-2", read_only=True) as store:
        assert contents(store, 2) == expected
    with FilePageStore.open(out / "node-1", read_only=True) as store:
        assert store.decided is not None
        assert store.decided.version == 2
    assert main(["verify", str(out), "--full"]) == 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: what was made, how, and how to go on; what is no state is refused."""
    make_state(tmp_path / "state", 1)
    out = str(tmp_path / "out")
    assert main(["snapshot", str(tmp_path / "state"), out]) == 0
    said = capsys.readouterr().out
    assert f"{out}: step 1, " in said
    assert f"luwu run --state {out} --resume" in said
    assert main(["snapshot", str(tmp_path), str(tmp_path / "other")]) == 2
    assert "holds no store" in capsys.readouterr().err
    assert main(["snapshot", str(tmp_path)]) == 2
    assert os.listdir(tmp_path / "out")
