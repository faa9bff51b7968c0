"""Loss scaling: torch's rule, the node's division, and a word for whoever brings a GradScaler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

import luwu
from luwu.training.steps.loss_scale import checked_loss_scale
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import digest_of, in_cluster, seeded, sharded
from tests.helpers.small_models import Stack, batch, shard, square_loss
from tests.helpers.training_harness import train, worker

STEPS = 12
BAD = {2, 3, 8}
"""Steps whose gradient is not finite."""
RULE = {"init_scale": 16.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3}


def make() -> Any:
    return seeded(lambda: Stack(blocks=1))


def loss_of(model: nn.Module, step: int) -> Tensor:
    loss = square_loss(model, step, 0, 0)
    return loss * float("inf") if step in BAD else loss


@pytest.mark.feature("dynamic loss scaling on the node")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_the_rule_is_that_of_grad_scaler(update: str, tmp_path: Path) -> None:
    """I4. Goal: the scales of torch's GradScaler, step by step, and its weights, bit for bit."""

    def work(rank: int) -> list[tuple[float, bool]]:
        model = sharded(make)
        rule = luwu.DynamicLossScale(**RULE)  # type: ignore[arg-type]
        optimizer = luwu.optim.SGD(model.parameters(), lr=1e-2, update=update, loss_scale=rule)
        seen = []
        for step in range(STEPS):
            optimizer.scale(loss_of(model, step)).backward()
            scale = luwu.session().loss_scale.value
            seen.append((scale, optimizer.step().applied))
        return seen

    model, expected = make(), []
    plain = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", **RULE)
    for step in range(STEPS):
        plain.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        expected.append((scaler.get_scale(), step not in BAD))
        scaler.unscale_(plain)
        scaler.step(plain)
        scaler.update()
    found = in_cluster(tmp_path, work, world_size=2)
    assert found.results == [expected, expected]
    assert {scale for scale, _ in expected} == {4.0, 8.0, 16.0}
    assert found.digest == digest_of(dict(model.named_parameters()))


@pytest.mark.feature("bfloat16, float16 on the wire and in compute")
def test_scaled_float16_gradients_do_not_vanish(tmp_path: Path) -> None:
    """Goal: gradients below float16's least number reach the masters with a scale, else not."""

    def work(loss_scale: float | None) -> Any:
        def run(rank: int) -> float:
            model = seeded(lambda: nn.Sequential(nn.Linear(64, 64)))
            luwu.fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.float16))
            optimizer = luwu.optim.SGD(model.parameters(), lr=1.0, loss_scale=loss_scale)
            y = model(batch(0, rank, 0)).float()
            optimizer.scale(y.mean() * 1e-6).backward()
            return optimizer.step().grad_norm

        return run

    model = seeded(lambda: nn.Sequential(nn.Linear(64, 64)))
    (model(batch(0, 0, 0)).mean() * 1e-6).backward()
    norm = float(
        torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    )
    assert in_cluster(tmp_path / "without", work(None)).results[0] < norm / 10
    assert in_cluster(tmp_path / "scaled", work(2.0**14)).results[0] == pytest.approx(
        norm, rel=1e-2
    )


@pytest.mark.feature("torch.amp.GradScaler")
def test_grad_scaler_is_told_what_to_do() -> None:
    """Goal: each call that would find no gradient raises, with the remedy, where it is made."""
    with worker(FakeNetwork(1)):
        model = sharded(make)
        optimizer = luwu.optim.SGD(model.parameters())
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(square_loss(model, 0, 0, 0)).backward()
        with pytest.raises(luwu.ConfigError, match=r'GradScaler.*loss_scale="dynamic"'):
            scaler.step(optimizer)
        with pytest.raises(luwu.LuwuError, match=r"GradScaler"):
            scaler.unscale_(optimizer)


def test_a_loss_that_was_not_scaled_is_refused() -> None:
    """Goal: the node divides by the scale, so a backward without it would be wrong by as much."""
    with worker(FakeNetwork(1)):
        model = sharded(make)
        optimizer = luwu.optim.SGD(model.parameters(), loss_scale="dynamic")
        with pytest.raises(luwu.StepOrderError, match=r"Call optimizer\.scale\(loss\)"):
            square_loss(model, 0, 0, 0).backward()
        for part in range(2):
            optimizer.scale(square_loss(model, 0, 0, part)).backward()
        optimizer.step()
        with pytest.raises(luwu.StepOrderError, match="backward of step 1"):
            square_loss(model, 1, 0, 0).backward()


@pytest.mark.parametrize(
    "lost", [{"verb": "commit", "step": 3}, {"verb": "push", "rank": 0, "step": 4}]
)
def test_a_replay_has_the_scale_of_its_step(lost: dict[str, Any]) -> None:
    """I3. Goal: going back over a verdict takes the scale back too; weights tell."""

    def run(network: FakeNetwork) -> Any:
        def optimizer(model: nn.Module) -> Any:
            rule = luwu.DynamicLossScale(**RULE)  # type: ignore[arg-type]
            made = luwu.optim.SGD(model.parameters(), lr=1e-2, loss_scale=rule)
            scaler.append(made)
            return made

        def loss(model: nn.Module, step: int, rank: int, part: int) -> Tensor:
            value = scaler[0].scale(loss_of(model, step))
            scales[step] = luwu.session().loss_scale.value
            return value

        scaler: list[Any] = []
        scales: dict[int, float] = {}
        train(network, make, shard, optimizer, loss, steps=6)
        applied = [applied for applied, _ in network.outcomes.values()]
        return scales, applied, digest_of(network.masters())

    expected = run(FakeNetwork(1))
    network = FakeNetwork(1)
    network.fail_at(**lost)
    assert run(network) == expected


@pytest.mark.parametrize("given", ["auto", 0.0, -1.0, float("nan"), float("inf")])
def test_scales_that_cannot_be(given: Any) -> None:
    with pytest.raises(luwu.ConfigError, match="loss_scale"):
        checked_loss_scale(given)


@pytest.mark.parametrize(
    "changes", [{"growth_factor": 0.5}, {"backoff_factor": 2.0}, {"growth_interval": 0}]
)
def test_rules_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(luwu.ConfigError, match="loss_scale"):
        luwu.DynamicLossScale(**changes)
