"""`luwu.offload_activations` on units of `luwu.fully_shard`: with a node, and with a network that
loses steps. The weights of units come and go while what was saved waits."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import luwu
from luwu.activations import ActivationStats
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import in_cluster
from tests.helpers.small_models import gpt_config, gpt_loss, make_gpt, shard_gpt
from tests.helpers.training_harness import alone, assert_same_bits, worker

STEPS = 3


def offload(model: nn.Module, directory: Path, memory_budget: Any) -> Any:
    return luwu.offload_activations(
        model, memory_budget=memory_budget, directory=directory, min_bytes=256
    )


def shard_and_offload(directory: Path, memory_budget: Any, *, is_first: bool = False) -> Any:
    """A function that does both to a model, in either order."""

    def shard(model: Any) -> None:
        if is_first:
            offload(model, directory, memory_budget)
        shard_gpt(model)
        if not is_first:
            offload(model, directory, memory_budget)

    return shard


def through_a_node(
    directory: Path, shard: Callable[[Any], object], *, update: str, checkpointing: Any
) -> tuple[list[list[float]], str, ActivationStats | None]:
    """Losses of both ranks, digest of the weights, and what the store of rank 0 did."""
    found: list[ActivationStats] = []

    def work(rank: int) -> list[float]:
        model: Any = make_gpt(gpt_config(checkpointing=checkpointing))
        shard(model)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, update=update)
        losses = []
        for step in range(STEPS):
            loss = gpt_loss(model, step, rank, 0)
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0 and "luwu_offload" in model.__dict__:
            del loss
            gc.collect()
            found.append(luwu.activation_stats(model))
        return losses

    trained = in_cluster(directory, work, world_size=2)
    return list(trained.results), trained.digest, found[0] if found else None


@pytest.mark.feature("offload_activations")
@pytest.mark.parametrize(
    ("checkpointing", "update"),
    [
        ("none", "streaming"),
        ("reentrant", "at_step"),
        ("nonreentrant", "streaming"),
        pytest.param("none", "at_step", marks=pytest.mark.slow),
        pytest.param("reentrant", "streaming", marks=pytest.mark.slow),
        pytest.param("nonreentrant", "at_step", marks=pytest.mark.slow),
    ],
)
def test_units_train_with_the_same_bits(tmp_path: Path, update: str, checkpointing: Any) -> None:
    """I4. Goal: losses of both ranks and the weights at the node, bit for bit, with nothing, some
    and all of it in memory, in either order of the two calls."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    job = {"update": update, "checkpointing": checkpointing}
    losses, digest, _ = through_a_node(tmp_path, shard_gpt, **job)
    for memory_budget, is_first in ((0, False), ("16KiB", True), ("1GiB", False)):
        shard = shard_and_offload(scratch, memory_budget, is_first=is_first)
        found_losses, found_digest, stats = through_a_node(tmp_path, shard, **job)
        assert (found_losses, found_digest) == (losses, digest)
        assert stats is not None
        assert stats.live_bytes == 0
        assert (stats.written_bytes > 0) == (memory_budget != "1GiB")
        if checkpointing != "none":
            x_bytes = 4 * 2 * 16 * 64  # inputs of 3 blocks, of the norm and of the head; tokens
            assert stats.saved_bytes == STEPS * (5 * x_bytes + 8 * 2 * 17)
        assert list(scratch.iterdir()) == []


class Aliases(nn.Module):
    """Saves its weights under other names than that of a parameter."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / 8)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.data
        y: Tensor = x @ self.weight + torch.tanh(x) @ weight + 1e-3 * (x[:1] * weight).sum() * x
        return y


def aliases() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = nn.Sequential(*(Aliases() for _ in range(4)))
    return model


def square(model: nn.Module, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    loss: Tensor = model(torch.randn(8, 64, generator=generator)).square().mean()
    return loss


@pytest.mark.parametrize("memory_budget", [0, "1GiB"])
def test_weights_are_never_moved(tmp_path: Path, memory_budget: Any) -> None:
    """Goal: views of weights stay, whatever they are called: their memory goes to other units and
    comes back with the weights. Method: `.data` of them, of which autograd knows nothing, is saved;
    only as many bytes go as in plain torch, where it is known as a parameter's."""
    masters = []
    for moves in (False, True):
        network = FakeNetwork(1)
        with worker(network):
            model = aliases()
            luwu.fully_shard_each(model, Aliases)
            if moves:
                offload(model, tmp_path, memory_budget)
            optimizer = luwu.optim.SGD(model.parameters(), lr=1e-3)
            for step in range(STEPS):
                square(model, step).backward()
                optimizer.step()
        masters.append(network.masters())
    plain = offload(aliases(), tmp_path, memory_budget)
    for step in range(STEPS):
        square(plain, step).backward()
    assert_same_bits(masters[1], masters[0])
    saved_bytes = [luwu.activation_stats(each).saved_bytes for each in (model, plain)]
    assert saved_bytes[0] == saved_bytes[1] > 0


def masters_after(
    directory: Path, checkpointing: Any, lost: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """The weights after a run on one worker with a step that is lost, once, or none."""
    network = FakeNetwork(1)
    if lost is not None:
        network.fail_at(**lost)
    with worker(network):
        model: Any = make_gpt(gpt_config(checkpointing=checkpointing))
        shard_and_offload(directory, 0)(model)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2)
        step = 0
        while step < STEPS:
            try:
                loss = None
                gc.collect()
                assert luwu.activation_stats(model).live_bytes == 0
                loss = gpt_loss(model, step, 0, 0)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
            except luwu.StepAborted as error:
                step = error.step
        loss = None
    assert network.attempt == (lost is not None)
    assert list(directory.iterdir()) == []
    return network.masters()


@pytest.fixture(scope="module", params=["none", "reentrant", "nonreentrant"])
def calm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Tensor]]:
    """A kind of checkpointing, and the weights after a run in which nothing is lost."""
    with alone():
        return request.param, masters_after(tmp_path_factory.mktemp("calm"), request.param)


@pytest.mark.parametrize(
    "lost",
    [{"verb": "pull", "step": 1}, {"verb": "push", "step": 1}, {"verb": "commit", "step": 1}],
)
def test_a_step_that_is_lost(
    tmp_path: Path, calm: tuple[str, dict[str, Tensor]], lost: dict[str, Any]
) -> None:
    """I3, A3. Goal: the replay has the bits of a calm run, and what the lost attempt had saved is
    given back before it begins."""
    checkpointing, expected = calm
    assert_same_bits(masters_after(tmp_path, checkpointing, lost), expected)
