"""Exports and snapshots of a job that is running, and of what its workers attached."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import luwu
from luwu.base.errors import PageCorruptError, StateError
from luwu.checkpoint.export_state import ExportOptions, export_state
from luwu.checkpoint.snapshot import take_snapshot
from luwu.checkpoint.source import RestingState, RunningState
from luwu.commands.main import main
from tests.helpers.exports import BUDGET, bring, export, flip, values_of
from tests.helpers.real_training import KIB, Trained, in_cluster, sharded
from tests.helpers.small_models import Stack, batch


def part(
    first: int, last: int, *, export_at: int | None = None,
    export: Callable[[RunningState], object] | None = None,
) -> Any:  # fmt: skip
    """Steps of a run that goes on from whatever it finds.

    Rank 0 holds the version after `export_at` steps, and gives it to `export` after the last.
    """

    def work(rank: int) -> Any:
        model = sharded(lambda: Stack(blocks=2))
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2)
        cursor = {"index": 0}
        generator = torch.Generator().manual_seed(5 + rank)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        luwu.attach("cursor", cursor)
        luwu.attach("noise", generator, per_rank=True)
        luwu.attach("scheduler", scheduler)
        assert (optimizer.next_step, cursor["index"]) == (first, first)
        state: RunningState | None = None
        for step in range(first, last):
            noise = torch.rand(8, 64, generator=generator)
            x = batch(cursor["index"], rank, 0)
            cursor["index"] += 1
            (model(x) * noise).square().mean().backward()
            result = optimizer.step()
            scheduler.step()
            if step + 1 == export_at:
                result.wait()
                if rank == 0:
                    state = RunningState(luwu.session().nic._make_reader())  # type: ignore[misc]
        if state is not None:
            assert export is not None
            with state:
                export(state)
        return scheduler.get_last_lr(), cursor["index"]

    return work


TWO = {"world_size": 2}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """All five steps, undisturbed."""
    return in_cluster(tmp_path_factory.mktemp("plain"), part(0, 5), **TWO)


@pytest.mark.feature("luwu snapshot")
@pytest.mark.feature("readers of a decided step")
@pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])
@pytest.mark.parametrize("way", ["export", "snapshot"])
def test_while_training_goes_on(way: str, has_switch: bool, plain: Trained, tmp_path: Path) -> None:
    """I2, I3. Goal: what was held after step 2 and written after step 5 is step 2; training goes on
    from the copy, or what was exported and imported, with all that was attached, to the weights of
    the run that was not exported; and that run is not disturbed."""
    out, new = tmp_path / "out", tmp_path / "new"

    def write(source: RunningState) -> None:
        if way == "export":
            export_state(source, out, ExportOptions(memory_budget_bytes=BUDGET))
        else:
            assert take_snapshot(source, new).version == 2

    changes: dict[str, Any] = {**TWO, "has_switch": has_switch}
    work = part(0, 5, export_at=2, export=write)
    assert in_cluster(tmp_path, work, state=tmp_path / "state", **changes).digest == plain.digest
    if way == "export":
        document = json.loads((out / "luwu.json").read_text())
        assert (document["step"], sorted(document["attached"])) == (2, ["0", "1"])
        assert bring(out, new, chunk_kib=32).step == 2
        changes["chunk_bytes"] = 32 * KIB
    assert main(["verify", str(new), "--full"]) == 0
    found = in_cluster(tmp_path, part(2, 5), state=new, resume=True, **changes)
    assert (found.digest, found.results) == (plain.digest, plain.results)


def test_at_rest(plain: Trained, tmp_path: Path) -> None:
    """I2, I3. Goal: the same of a state directory, which is not touched; a copy holds all that it
    does; damage to what was attached is found."""
    state, out, new, copy = (tmp_path / name for name in ("state", "out", "new", "copy"))
    in_cluster(tmp_path, part(0, 2), state=state, **TWO)
    before = values_of(state)
    export(state, out)
    bring(out, new)
    with RestingState(state) as source:
        take_snapshot(source, copy)
    assert values_of(state) == values_of(copy) == before
    for place in (new, copy):
        found = in_cluster(tmp_path, part(2, 5), state=place, resume=True, **TWO)
        assert (found.digest, found.results) == (plain.digest, plain.results)
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
    in_cluster(tmp_path, part(0, 2), state=tmp_path / "state")
    export(tmp_path / "state", tmp_path / "out", has_optimizer=False)
    assert not list((tmp_path / "out").glob("attached-*"))


def test_export_of_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a run that has ended is named as that, not as damaged."""
    (tmp_path / "run" / "logs").mkdir(parents=True)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 2
    assert "a run that has ended" in capsys.readouterr().err
