"""Muon of matrices over several chunks: the bits of one chunk that holds the matrix."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import luwu
from luwu.checkpoint.export_state import ExportOptions, export_state
from luwu.checkpoint.refill import refill
from luwu.checkpoint.source import RestingState
from switch_emu.node.core import NodeCore
from switch_emu.node.sheets import Matrix
from tests.helpers.real_training import KIB, MIB, digests, in_cluster, sharded, train_steps
from tests.helpers.small_models import Block, Stack, batch
from tests.optim.test_muon import groups_of

pytestmark = pytest.mark.feature("Muon")

ONE = {"chunk_bytes": 64 * KIB}
"""A chunk holds the largest matrix, 150 x 64 elements, which is 37.5 KiB."""
SEVERAL = {"chunk_bytes": 16 * KIB}
"""It takes three, the last of which has 1,408 elements."""


class Uneven(Block):
    """A wide matrix and a tall one, of which no chunk ends with a row."""

    def __init__(self) -> None:
        super().__init__(64)
        self.up, self.down = nn.Linear(64, 150), nn.Linear(150, 64)


def make() -> nn.Module:
    model = Stack(blocks=0)
    model.blocks = nn.ModuleList([Uneven(), Uneven()])
    return model


def work_with(steps: int = 4, **arguments: Any) -> Callable[[int], Any]:
    """A rank that goes on from the step that is open."""

    def work(rank: int) -> Any:
        model = sharded(make)
        optimizer = luwu.optim.Muon(groups_of(model), lr=0.02, **arguments)
        train_steps(model, optimizer, optimizer.next_step, steps, rank)
        return digests(model, optimizer)

    return work


FEW_BITS = {"average": luwu.ema(0.9), "state_dtype": "int8", "master_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("update", "arguments"),
    [
        ("at_step", {}), ("streaming", {"max_grad_norm": 1e-3}), ("streaming", FEW_BITS),
        pytest.param("streaming", {}, marks=pytest.mark.slow),
        pytest.param("at_step", {"max_grad_norm": 1e-3}, marks=pytest.mark.slow),
        pytest.param("at_step", FEW_BITS, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_several_chunks_have_the_bits_of_one(
    update: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    """I3. Goal: the same weights and moments wherever chunks and extents end, in RAM and out of
    core, on one node and on several; also of steps that are updated twice."""
    work = work_with(update=update, **arguments)
    ways: list[dict[str, Any]] = [
        ONE,
        ONE | {"state": tmp_path / "one", "memory_budget_bytes": 4 * MIB},
        ONE | {"optimizer_nodes": 2, "replicas": 2, "extent_chunks": 2},
        SEVERAL,
        SEVERAL | {"extent_chunks": 2},
        SEVERAL | {"extent_chunks": 8},
        SEVERAL | {"state": tmp_path / "disk", "memory_budget_bytes": 4 * MIB},
        SEVERAL | {"optimizer_nodes": 2, "extent_chunks": 2},
        SEVERAL | {"optimizer_nodes": 3, "replicas": 2, "state": tmp_path / "nodes"},
    ]
    (tmp_path / "nodes").mkdir()
    first, *others = [
        in_cluster(tmp_path / str(index), work, world_size=2, **way).results[0]
        for index, way in enumerate(ways)
    ]
    assert others == [first] * len(others)


@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_a_matrix_is_one_update_on_one_node(
    update: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a sheet of three extents is gathered and updated once a step, even where sums are
    spilled and only one update may be under way."""
    seen: list[int] = []
    whole = Matrix.update

    def counted(self: Matrix, *given: Any) -> None:
        seen.append(self.elems)
        whole(self, *given)

    monkeypatch.setattr(Matrix, "update", counted)
    ways = SEVERAL | {"state": tmp_path / "state", "memory_budget_bytes": 2 * MIB}
    trained = in_cluster(tmp_path / "a", work_with(3, update=update), **ways)
    assert sorted(seen) == 12 * [9600]
    assert trained.counts["duplicates_count"] == 0
    assert trained.results == in_cluster(tmp_path / "b", work_with(3, update=update), **ONE).results


def test_a_job_goes_on_with_other_extents(tmp_path: Path) -> None:
    """I2, I3. Goal: stopped after two steps and resumed with other extents: the same bits."""
    state = SEVERAL | {"state": tmp_path / "state"}
    in_cluster(tmp_path / "a", work_with(2), **state)
    resumed = in_cluster(tmp_path / "b", work_with(4), **state, resume=True, extent_chunks=2)
    assert resumed.results == in_cluster(tmp_path / "c", work_with(4), **ONE).results


def test_an_evaluation_sees_the_weights_of_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8. Goal: weights that are made before their update, of a state in RAM of one side, are those
    of the update. Method: a scheduler is attached late, and the model is used before."""
    previews: list[int] = []
    told = NodeCore.previewed

    def counted(self: NodeCore, update: Any, *given: Any, **named: Any) -> Any:
        previews.append(len(update.others))
        return told(self, update, *given, **named)

    monkeypatch.setattr(NodeCore, "previewed", counted)

    def work(rank: int) -> Any:
        model = sharded(make)
        optimizer = luwu.optim.Muon(groups_of(model), lr=0.02)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        luwu.attach("scheduler", scheduler)
        outputs = []
        for step in range(3):
            train_steps(model, optimizer, step, step + 1, rank)
            with torch.no_grad():
                outputs.append(model(batch(7, 0, 0)).tolist())
            scheduler.step()
        return outputs, digests(model, optimizer)

    several = in_cluster(tmp_path / "a", work, **SEVERAL)
    assert max(previews) == 2, "no sheet was previewed"
    assert several.results == in_cluster(tmp_path / "b", work, **ONE).results


def test_states_of_several_nodes_are_exported_and_refilled(tmp_path: Path) -> None:
    """I2. Goal: an export of three nodes is that of one, byte for byte, also after a directory was
    made again from the others."""
    nodes = SEVERAL | {"optimizer_nodes": 3, "replicas": 2, "state": tmp_path / "three"}
    (tmp_path / "three").mkdir()
    in_cluster(tmp_path / "a", work_with(2), **nodes)
    in_cluster(tmp_path / "b", work_with(2), **ONE, state=tmp_path / "one")
    expected = exported(tmp_path / "one", tmp_path / "of-one")
    assert len(expected) == 2
    assert exported(tmp_path / "three", tmp_path / "of-three") == expected
    shutil.rmtree(tmp_path / "three" / "node-1")
    assert refill(tmp_path / "three").nodes == (1,)
    shutil.rmtree(tmp_path / "three" / "node-2")
    assert refill(tmp_path / "three").nodes == (2,)
    assert exported(tmp_path / "three", tmp_path / "again") == expected


def exported(state: Path, into: Path) -> list[bytes]:
    """Weights and moments of an export."""
    with RestingState(state) as source:
        export_state(source, into, ExportOptions())
    return [path.read_bytes() for path in sorted(into.glob("*.safetensors"))]
