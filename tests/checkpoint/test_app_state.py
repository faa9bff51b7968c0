"""luwu.AppState: torch's distributed checkpoints, to and from plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard

import luwu
from luwu.optim.averages import WeightAverage
from tests.helpers.real_training import digest_of, in_cluster, seeded, sharded, train_steps
from tests.helpers.small_models import Block, Stack

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
STEPS, MORE = 3, 2
ARGUMENTS: dict[str, dict[str, Any]] = {"AdamW": {"lr": 1e-3}, "SGD": {"lr": 1e-2, "momentum": 0.9}}


class Plain:
    """The state of an application in plain torch, as torch's documents write it."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer,
            model_state_dict=state["model"], optim_state_dict=state["optim"],
        )  # fmt: skip


def save(app: Any, directory: Path) -> None:
    dcp.save({"app": app}, checkpoint_id=directory, no_dist=True)


def load(app: Any, directory: Path, planner: dcp.LoadPlanner | None = None) -> None:
    dcp.load({"app": app}, checkpoint_id=directory, planner=planner, no_dist=True)


def plain_job(name: str, seed: int = 7) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = seeded(Stack, seed)
    return model, getattr(torch.optim, name)(model.parameters(), **ARGUMENTS[name], fused=True)


def sharded_job(name: str, seed: int = 7, **more: Any) -> tuple[nn.Module, Any]:
    model = sharded(seed=seed)
    return model, getattr(luwu.optim, name)(model.parameters(), **ARGUMENTS[name], **more)


def expected_of(name: str) -> str:
    """Weights of plain torch at the end."""
    model, optimizer = plain_job(name)
    train_steps(model, optimizer, 0, STEPS + MORE)
    return digest_of(dict(model.named_parameters()))


@pytest.mark.feature("torch.distributed.checkpoint")
@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("way", ["ours to ours", "ours to torch", "torch to ours"])
def test_a_checkpoint_goes_on(way: str, name: str, tmp_path: Path) -> None:
    """I3. Goal: training goes on with the bits of plain torch, whichever of the two saved and
    loads, also with other first weights and another learning rate before."""
    source, target = way.split(" to ")
    directory = tmp_path / "checkpoint"
    if source == "torch":
        model, optimizer = plain_job(name)
        train_steps(model, optimizer, 0, STEPS)
        save(Plain(model, optimizer), directory)
    else:

        def first(_: int) -> None:
            model, optimizer = sharded_job(name)
            train_steps(model, optimizer, 0, STEPS)
            app = luwu.AppState(model, optimizer)
            assert isinstance(app, Stateful)
            save(app, directory)

        in_cluster(tmp_path / "first", first)
    if target == "torch":
        model, optimizer = plain_job(name, seed=1)
        load(Plain(model, optimizer), directory, dcp.DefaultLoadPlanner(allow_partial_load=True))
        train_steps(model, optimizer, STEPS, STEPS + MORE)
        assert digest_of(dict(model.named_parameters())) == expected_of(name)
        return

    def second(_: int) -> None:
        model, optimizer = sharded_job(name, seed=1)
        optimizer.param_groups[0]["lr"] = 9.0
        load(luwu.AppState(model, optimizer), directory)
        train_steps(model, optimizer, STEPS, STEPS + MORE)

    assert in_cluster(tmp_path / "second", second).digest == expected_of(name)


@pytest.mark.feature("torch.distributed.checkpoint")
def test_a_checkpoint_of_fsdp_goes_on(tmp_path: Path) -> None:
    """Goal: what an FSDP2 script has saved, its shards, gives a run its weights, moments and
    groups, and the other way. Method: FSDP2 with one rank, over gloo."""
    model: Any = seeded(Stack)
    dist.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        for block in model.modules():
            if isinstance(block, Block):
                fully_shard(block)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        train_steps(model, optimizer, 0, STEPS)
        save(Plain(model, optimizer), tmp_path / "theirs")
        expected = {name: p.full_tensor() for name, p in model.state_dict().items()}

        def work(_: int) -> None:
            ours, network = sharded_job("AdamW", seed=1)
            network.param_groups[0]["lr"] = 9.0
            load(luwu.AppState(ours, network), tmp_path / "theirs")
            assert network.param_groups[0]["lr"] == 1e-3
            assert digest_of(luwu.get_model_state_dict(ours)) == digest_of(expected)
            found = luwu.get_optimizer_state_dict(ours, network)["state"]["first.weight"]
            theirs = optimizer.state[model.first.weight]
            assert found["step"] == STEPS
            assert torch.equal(found["exp_avg"], theirs["exp_avg"].full_tensor())
            train_steps(ours, network, STEPS, STEPS + MORE)
            save(luwu.AppState(ours, network), tmp_path / "ours")
            expected.update(luwu.get_model_state_dict(ours))

        in_cluster(tmp_path / "job", work)
        load(
            Plain(model, optimizer), tmp_path / "ours",
            dcp.DefaultLoadPlanner(allow_partial_load=True),
        )  # fmt: skip
        back = {name: p.full_tensor() for name, p in model.state_dict().items()}
        assert digest_of(back) == digest_of(expected)
    finally:
        dist.destroy_process_group()


@pytest.mark.feature("torch.distributed.checkpoint")
@pytest.mark.feature("an average of the weights")
def test_an_average_is_in_the_checkpoint(tmp_path: Path) -> None:
    """Goal: an average goes on with its bits; of a checkpoint that has none it begins with the
    weights, if the script asks for what there is."""
    ends = []

    def job(average: WeightAverage | None) -> tuple[nn.Module, Any]:
        return sharded_job("AdamW", average=average)

    def whole(_: int) -> None:
        model, optimizer = job(luwu.ema(0.5))
        train_steps(model, optimizer, 0, STEPS)
        save(luwu.AppState(model, optimizer), tmp_path / "with")
        train_steps(model, optimizer, STEPS, STEPS + MORE)
        ends.append(digest_of(luwu.get_model_state_dict(model, average=True)))

    def without(_: int) -> None:
        model, optimizer = job(None)
        train_steps(model, optimizer, 0, STEPS)
        save(luwu.AppState(model, optimizer), tmp_path / "without")

    def resumed(_: int) -> None:
        model, optimizer = job(luwu.ema(0.5))
        load(luwu.AppState(model, optimizer), tmp_path / "with")
        train_steps(model, optimizer, STEPS, STEPS + MORE)
        ends.append(digest_of(luwu.get_model_state_dict(model, average=True)))

    def begun(_: int) -> None:
        model, optimizer = job(luwu.ema(0.5))
        with pytest.raises(CheckpointException, match=r"Missing key.*average"):
            load(luwu.AppState(model, optimizer), tmp_path / "without")
        partly = dcp.DefaultLoadPlanner(allow_partial_load=True)
        load(luwu.AppState(model, optimizer), tmp_path / "without", partly)
        weights = luwu.get_model_state_dict(model)
        average = luwu.get_model_state_dict(model, average=True)
        assert digest_of(weights) == digest_of(average)

    for number, work in enumerate((whole, without, resumed, begun)):
        in_cluster(tmp_path / str(number), work)
    assert ends[0] == ends[1]


@pytest.mark.feature("torch.distributed.checkpoint")
def test_ranks_that_have_nothing_load_nothing(tmp_path: Path) -> None:
    """Goal: of two workers rank 0 saves and loads all; the other one's part is empty."""

    def work(rank: int) -> None:
        model, optimizer = sharded_job("AdamW")
        app = luwu.AppState(model, optimizer)
        state = app.state_dict()
        assert bool(state["model"]) == bool(state["optim"]) == (rank == 0)
        app.load_state_dict(state)  # what was not read: zeros
        assert bool(app.state_dict()["model"]) == (rank == 0)
        found = luwu.get_model_state_dict(model)
        assert all(not value.any() for value in found.values())

    in_cluster(tmp_path, work, world_size=2)
