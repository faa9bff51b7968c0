"""Exports and snapshots of a job that is running, and of what its workers attached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import luwu
from luwu.base.errors import PageCorruptError, StateError
from luwu.base.retry import RetryPolicy
from luwu.checkpoint.export_state import ExportOptions, export_state
from luwu.checkpoint.snapshot import take_snapshot
from luwu.checkpoint.source import RestingState, RunningState
from luwu.commands.main import main
from luwu.protocol.uplink import Uplink
from switch_emu.process import loop
from tests.checkpoint import test_attached
from tests.checkpoint.test_attached import STEPS, assert_same, script
from tests.helpers.exports import BUDGET, bring, export, flip, values_of
from tests.helpers.real_training import KIB, Trained, in_cluster

undisturbed = test_attached.undisturbed  # a fixture of this module
TWO = {"world_size": 2}
NEVER = RetryPolicy(first_ns=10**12, most_ns=10**12)


@pytest.mark.feature("luwu snapshot")
@pytest.mark.feature("readers of a decided step")
@pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])
@pytest.mark.parametrize("way", ["export", "snapshot"])
def test_while_training_goes_on(
    way: str, has_switch: bool, undisturbed: Trained, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """I2, I3. Goal: what was held after step 2 and written after the last is step 2; training goes
    on from the copy, or what was exported and imported, with all that was attached, to the weights
    of the run that was not exported; and that run is not disturbed. The node starts each read at
    once. Method: its loop never wakes by itself, and the reader never asks again."""
    monkeypatch.setattr(loop, "_RECEIVE_NS_MAX", 10**12)
    out, new = tmp_path / "out", tmp_path / "new"

    def write(source: RunningState) -> None:
        if way == "export":
            export_state(source, out, ExportOptions(memory_budget_bytes=BUDGET))
        else:
            assert take_snapshot(source, new).version == 2

    held: list[RunningState] = []

    def after(step: int, result: Any) -> None:
        if step == 2:
            result.wait()
        if step == 2 and luwu.rank() == 0:
            reader = luwu.session().nic._make_reader()  # type: ignore[misc]
            reader._core.uplink = Uplink(reader._core.out.actions, NEVER)
            held.append(RunningState(reader))
        if step == STEPS and luwu.rank() == 0:
            with held.pop() as source:
                write(source)

    changes: dict[str, Any] = {**TWO, "has_switch": has_switch}
    found = in_cluster(tmp_path, script(STEPS, after=after), state=tmp_path / "state", **changes)
    assert_same(found, undisturbed)
    if way == "export":
        document = json.loads((out / "luwu.json").read_text())
        assert (document["step"], sorted(document["attached"])) == (2, ["0", "1"])
        assert bring(out, new, chunk_kib=32).step == 2
        changes["chunk_bytes"] = 32 * KIB
    assert main(["verify", str(new), "--full"]) == 0
    resumed = in_cluster(tmp_path, script(STEPS), state=new, resume=True, **changes)
    assert_same(resumed, undisturbed)


def test_at_rest(undisturbed: Trained, tmp_path: Path) -> None:
    """I2, I3. Goal: the same of a state directory, which is not touched; a copy holds all that it
    does; damage to what was attached is found."""
    state, out, new, copy = (tmp_path / name for name in ("state", "out", "new", "copy"))
    in_cluster(tmp_path, script(2), state=state, **TWO)
    before = values_of(state)
    export(state, out)
    bring(out, new)
    with RestingState(state) as source:
        take_snapshot(source, copy)
    found = values_of(copy)
    assert values_of(state) == before
    assert (found.fields, found.updates, found.digest) == (
        before.fields, before.updates, before.digest,
    )  # fmt: skip
    for place in (new, copy):
        found = in_cluster(tmp_path, script(STEPS), state=place, resume=True, **TWO)
        assert_same(found, undisturbed)
    path = out / "attached-1.msgpack"
    flip(path, -1)
    with pytest.raises(PageCorruptError, match=r"attached-1\.msgpack changed"):
        bring(out, tmp_path / "damaged")
    path.unlink()
    with pytest.raises(StateError, match=r"attached-1\.msgpack cannot be read"):
        bring(out, tmp_path / "damaged")
    assert not (tmp_path / "damaged").exists()


def test_weights_alone_have_nothing_attached(tmp_path: Path) -> None:
    """Goal: an export without the optimizer's state has none of those who attach."""
    in_cluster(tmp_path, script(2), state=tmp_path / "state")
    export(tmp_path / "state", tmp_path / "out", has_optimizer=False)
    assert not list((tmp_path / "out").glob("attached-*"))


def test_export_of_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a run that has ended is named as that, not as damaged."""
    (tmp_path / "run" / "logs").mkdir(parents=True)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 2
    assert "a run that has ended" in capsys.readouterr().err
