"""Exports of a job that is running, and of what its workers attached."""

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
from luwu.checkpoint.source import RunningState
from luwu.commands.main import main
from tests.helpers.exports import BUDGET, bring, export, flip
from tests.helpers.real_training import in_cluster, seeded
from tests.helpers.small_models import Stack, batch, shard
from tests.helpers.training_harness import one_thread  # noqa: F401 - for every test here


def part(
    first: int, last: int, *, export_at: int | None = None,
    export: Callable[[RunningState], object] | None = None,
) -> Any:  # fmt: skip
    """Steps of a run that goes on from whatever it finds.

    Rank 0 holds the version after `export_at` steps, and gives it to `export` after the last.
    """

    def work(rank: int) -> Any:
        model = seeded(lambda: Stack(blocks=2))
        shard(model)
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


@pytest.mark.feature("readers of a decided step")
@pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])
def test_export_import_while_training_goes_on(has_switch: bool, tmp_path: Path) -> None:
    """I3. Goal: what was held after step 2 and written after step 5 is step 2; imported, training
    goes on from it, with all that was attached, to the weights of the run that was not exported;
    and that run is not disturbed."""
    out, state = tmp_path / "out", tmp_path / "state"
    changes: dict[str, Any] = {"world_size": 2, "has_switch": has_switch}
    plain = in_cluster(tmp_path, part(0, 5), **changes)

    def write(source: RunningState) -> None:
        export_state(source, out, ExportOptions(memory_budget_bytes=BUDGET))

    exported = in_cluster(tmp_path, part(0, 5, export_at=2, export=write), state=state, **changes)
    assert exported.digest == plain.digest
    document = json.loads((out / "luwu.json").read_text())
    assert (document["step"], sorted(document["attached"])) == (2, ["0", "1"])
    new = tmp_path / "new"
    assert bring(out, new, chunk_kib=32).step == 2
    found = in_cluster(tmp_path, part(2, 5), state=new, resume=True, chunk_bytes=32768, **changes)
    assert (found.digest, found.results) == (plain.digest, plain.results)


def test_export_import_at_rest_brings_what_was_attached(tmp_path: Path) -> None:
    """I3. Goal: the same of a state directory; damage to what was attached is found."""
    state, out, new = (tmp_path / name for name in ("state", "out", "new"))
    plain = in_cluster(tmp_path, part(0, 4), world_size=2)
    in_cluster(tmp_path, part(0, 2), world_size=2, state=state)
    export(state, out)
    bring(out, new)
    found = in_cluster(tmp_path, part(2, 4), world_size=2, state=new, resume=True)
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
