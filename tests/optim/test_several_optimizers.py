"""Several optimizer objects in one run: Muon beside AdamW, a generator's and a discriminator's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

import luwu
from luwu.base.errors import ConfigError, StepAborted, StepOrderError
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import digest_of, in_cluster, seeded, sharded
from tests.helpers.small_models import Stack, batch, square_loss
from tests.helpers.training_harness import worker

STEPS = 4
Both = tuple[Any, Any]


class Critic(Stack):
    """A second model, with a name of its own."""


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.ndim == 2]


def others(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.ndim != 2]


def muon_and_adamw(model: nn.Module, **network: Any) -> Both:
    muon = luwu.optim.Muon(matrices(model), lr=0.02, **network)
    return muon, luwu.optim.AdamW(others(model), lr=1e-2, weight_decay=0.0, **network)


def halved(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


# ---------------------------------------------------------------------------- one model


def each_in_turn(optimizers: Both, schedulers: Any) -> None:
    for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def backwards_at_once(optimizers: Both, schedulers: Any) -> None:
    results = [optimizer.step() for optimizer in reversed(optimizers)]
    assert results[0] is results[1]
    assert results[0].applied
    for scheduler in schedulers:
        scheduler.step()
    for optimizer in optimizers:
        optimizer.zero_grad()


@pytest.mark.feature("several optimizers in one run")
@pytest.mark.parametrize(
    ("end", "update"), [(each_in_turn, "at_step"), (backwards_at_once, "streaming")]
)
def test_muon_and_adamw_are_one_step(
    end: Callable[[Both, Any], None], update: str, tmp_path: Path
) -> None:
    """I1, I4. Goal: the weights of one Muon whose second group AdamW updates, bit for bit, in
    either order of step(), with a schedule each; every step counts once."""

    def one(rank: int) -> None:
        model = sharded()
        groups = [
            {"params": matrices(model)},
            {"params": others(model), "use_muon": False, "lr": 1e-2, "weight_decay": 0.0},
        ]
        optimizer = luwu.optim.Muon(groups, lr=0.02, update=update)
        scheduler = halved(optimizer)
        for step in range(STEPS):
            square_loss(model, step, rank, 0).backward()
            optimizer.step()
            scheduler.step()

    def two(rank: int) -> None:
        model = sharded()
        optimizers = muon_and_adamw(model, update=update)
        assert optimizers[0].next_step == 0
        schedulers = [halved(each) for each in optimizers]
        for step in range(STEPS):
            square_loss(model, step, rank, 0).backward()
            end(optimizers, schedulers)
        assert luwu.session().step == STEPS

    options: dict[str, Any] = {"world_size": 2, "chunk_bytes": 64 * 1024}
    expected = in_cluster(tmp_path / "one", one, **options).digest
    assert in_cluster(tmp_path / "two", two, **options).digest == expected


@pytest.mark.feature("several optimizers in one run")
def test_a_step_lost_between_two_optimizers_is_made_again(tmp_path: Path) -> None:
    """I1, I2. Goal: nothing of an optimizer that had stepped is left in the next attempt."""

    def train(lose: bool) -> Callable[[int], None]:
        def work(rank: int) -> None:
            model = sharded()
            muon, adamw = muon_and_adamw(model)
            step, is_lost, lost = 0, not lose, list[int]()
            while step < STEPS:
                try:
                    square_loss(model, step, rank, 0).backward()
                    result = muon.step()
                    if step == 2 and not is_lost:
                        is_lost = True
                        luwu.session().nic.cancel("a test")
                    adamw.step().wait()
                    step += 1
                except StepAborted as error:
                    lost.append(error.step)
                    with pytest.raises(StepOrderError, match="step 2 was lost"):
                        result.wait()
                    step = error.step
            assert lost == [2] * lose

        return work

    options: dict[str, Any] = {"chunk_bytes": 64 * 1024}
    expected = in_cluster(tmp_path / "a", train(False), **options).digest
    assert in_cluster(tmp_path / "b", train(True), **options).digest == expected


@pytest.mark.feature("several optimizers in one run")
def test_state_dicts_of_each_optimizer(tmp_path: Path) -> None:
    """I4. Goal: each has the state of its own parameters; both together, or one after the other,
    give a new job what it needs to go on with the same bits; AppState takes both."""
    checkpoint = tmp_path / "checkpoint"

    def train(model: Any, optimizers: Both, first: int, last: int) -> None:
        for step in range(first, last):
            square_loss(model, step, 0, 0).backward()
            for optimizer in optimizers:
                optimizer.step()

    def whole(_: int) -> tuple[Any, ...]:
        model = sharded()
        muon, adamw = muon_and_adamw(model)
        train(model, (muon, adamw), 0, 2)
        weights = luwu.get_model_state_dict(model)
        parts = [luwu.get_optimizer_state_dict(model, each) for each in (muon, adamw)]
        both = luwu.get_optimizer_state_dict(model, (muon, adamw))
        dcp.save(
            {"app": luwu.AppState(model, (muon, adamw))}, checkpoint_id=checkpoint, no_dist=True
        )
        train(model, (muon, adamw), 2, STEPS)
        return weights, parts, both

    options: dict[str, Any] = {"chunk_bytes": 64 * 1024}
    expected = in_cluster(tmp_path / "a", whole, **options)
    weights, parts, both = expected.results[0]
    assert parts[0]["state"].keys().isdisjoint(parts[1]["state"])
    assert set(parts[0]["state"]["first.weight"]) == {"momentum_buffer"}
    assert set(parts[1]["state"]["first.bias"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert both["state"].keys() == parts[0]["state"].keys() | parts[1]["state"].keys()

    def continued(how: str) -> Callable[[int], None]:
        def work(_: int) -> None:
            model = sharded(seed=8)
            muon, adamw = muon_and_adamw(model)
            if how == "checkpoint":
                app = {"app": luwu.AppState(model, (muon, adamw))}
                dcp.load(app, checkpoint_id=checkpoint, no_dist=True)
            else:
                luwu.set_model_state_dict(model, weights)
                given = (
                    [((muon, adamw), both)]
                    if how == "both"
                    else zip((muon, adamw), parts, strict=True)
                )
                for optimizers, state in given:
                    luwu.set_optimizer_state_dict(model, optimizers, state)
            train(model, (muon, adamw), 2, STEPS)

        return work

    for how in ("both", "parts", "checkpoint"):
        found = in_cluster(tmp_path / how, continued(how), **options).digest
        assert found == expected.digest, how


# ---------------------------------------------------------------------------- several models


def compete(
    maker: Any, critic: Any, ranks: list[int], end: Callable[[int], object], empty: bool = False,
    steps: Iterable[int] = range(STEPS),
) -> None:  # fmt: skip
    """A step of the critic and one of the maker, in turn; of all these ranks' batches together.
    `empty`: a rank that has no batch of odd steps."""
    for step in steps:
        for turn, (trained, frozen) in enumerate(((critic, maker), (maker, critic))):
            trained.requires_grad_(True)
            frozen.requires_grad_(False)
            given = [rank for rank in ranks if rank == 0 or step % 2 == 0]
            for rank in given:
                loss = critic(maker(batch(step, rank, 0))).square().mean()
                (-loss if turn else loss).backward()
            if empty and not given:
                luwu.empty_backward()
            end(turn)


def plain_competition(ranks: list[int]) -> tuple[nn.Module, nn.Module]:
    """Maker and critic as two optimizers of torch train them."""
    maker, critic = seeded(Stack), seeded(Critic, 8)
    plain = (
        torch.optim.AdamW(critic.parameters(), lr=2e-3, fused=True),
        torch.optim.AdamW(maker.parameters(), lr=1e-3, fused=True),
    )

    def step(turn: int) -> None:
        for group in plain[turn].param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(len(ranks))
        plain[turn].step()
        for each in plain:
            each.zero_grad()

    compete(maker, critic, ranks, step)
    return maker, critic


@pytest.mark.feature("several optimizers in one run")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_two_models_with_an_optimizer_each(update: str, tmp_path: Path) -> None:
    """I1, I4. Goal: bit for bit the weights of two torch optimizers, whose gradients are the means
    of two workers; also where a worker has no samples, and so does not know who will step."""

    def work(rank: int) -> tuple[dict[str, Tensor], ...]:
        models = sharded(), sharded(Critic, 8)
        optimizers = (
            luwu.optim.AdamW(models[1].parameters(), lr=2e-3, update=update),
            luwu.optim.AdamW(models[0].parameters(), lr=1e-3, update=update),
        )

        def end(turn: int) -> None:
            optimizers[turn].step()
            optimizers[1 - turn].zero_grad()
            optimizers[turn].zero_grad()

        compete(*models, [rank], end, empty=True)
        assert optimizers[0].next_step == 2 * STEPS
        return tuple(luwu.get_model_state_dict(model) for model in models)

    found = in_cluster(tmp_path, work, world_size=2).results[0]
    for model, weights in zip(plain_competition([0, 1]), found, strict=True):
        assert digest_of(weights) == digest_of(dict(model.named_parameters()))


@pytest.mark.feature("several optimizers in one run")
def test_a_step_of_one_leaves_the_other_alone(tmp_path: Path) -> None:
    """I1, I4. Goal: with losses that share nothing, each step is that of one optimizer, whatever
    the other is told; step() of the other has nothing to do, once."""

    def train(models: Any, first: Any, second: Any) -> None:
        for step in range(STEPS):
            square_loss(models[0], step, 0, 0).backward()
            second.zero_grad()
            first.step()
            second.step()
            first.zero_grad()
            square_loss(models[1], 10 + step, 0, 0).backward()
            second.step()
            second.zero_grad()

    plain = seeded(Stack), seeded(Critic, 8)
    train(plain, *(torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True) for m in plain))

    def work(_: int) -> tuple[dict[str, Tensor], ...]:
        models = sharded(), sharded(Critic, 8)
        first, second = (luwu.optim.AdamW(m.parameters(), lr=1e-3) for m in models)
        train(models, first, second)
        assert luwu.session().step == 2 * STEPS
        assert first.step().number == 2 * STEPS - 1
        with pytest.raises(StepOrderError, match="without a backward"):
            first.step()
        return tuple(luwu.get_model_state_dict(model) for model in models)

    found = in_cluster(tmp_path, work).results[0]
    for model, weights in zip(plain, found, strict=True):
        assert digest_of(weights) == digest_of(dict(model.named_parameters()))


# ---------------------------------------------------------------------------- what is rejected


@pytest.mark.feature("several optimizers in one run")
@pytest.mark.parametrize("recover", [True, False])
def test_a_gradient_that_no_optimizer_steps_for_is_rejected(recover: bool, tmp_path: Path) -> None:
    """Goal: torch would keep it for a later step(); here whatever comes next names both optimizers,
    and the step can be given up, or made."""
    rejected = r"step 0 is that of luwu\.optim\.Muon \(0\), but.*luwu\.optim\.AdamW \(1\) got"

    def work(_: int) -> None:
        model = sharded()
        muon, adamw = muon_and_adamw(model)
        square_loss(model, 0, 0, 0).backward()
        result = muon.step()
        for use in (
            lambda: square_loss(model, 1, 0, 0),
            lambda: result.applied,
            result.wait,
            adamw.zero_grad,
            luwu.finish,
            lambda: luwu.get_model_state_dict(model),
        ):
            with pytest.raises(StepOrderError, match=rejected):
                use()
        with pytest.raises(StepOrderError, match=r"Muon for the second time in step 0, before"):
            muon.step()
        with pytest.raises(StepOrderError, match=r"skip_step\(\) of one optimizer and step\(\)"):
            adamw.skip_step()
        muon.zero_grad()  # its gradient is that of its step
        if recover:
            assert adamw.step() is result
            assert result.applied
            return
        with pytest.raises(StepAborted):
            model.zero_grad()
            square_loss(model, 0, 0, 0)
        with pytest.raises(StepOrderError, match="step 0 was lost"):
            result.wait()
        square_loss(model, 0, 0, 0).backward()
        assert [each.skip_step().number for each in (muon, adamw)] == [0, 0]
        square_loss(model, 1, 0, 0).backward()
        with pytest.raises(StepOrderError, match=rejected.replace("step 0", "step 1")):
            muon.step(lambda: None)
        adamw.step()

    in_cluster(tmp_path, work, chunk_bytes=64 * 1024)


@pytest.mark.feature("several optimizers in one run")
def test_optimizers_that_make_no_one_step_are_rejected() -> None:
    """Goal: each reason is said as the second one is made, or in the first forward or step()."""
    with worker(FakeNetwork(1)):
        model = sharded()
        luwu.optim.SGD(matrices(model), lr=0.1)
        for make, reason in (
            (lambda: luwu.optim.AdamW(others(model)), r"SGD and luwu\.optim\.AdamW in one run"),
            (lambda: luwu.optim.SGD(model.parameters()), r"luwu\.optim\.SGD has already"),
            (
                lambda: luwu.optim.SGD(others(model), update="streaming"),
                "whole steps, update: 'at_step' and",
            ),
            (
                lambda: luwu.optim.SGD(others(model), average=luwu.ema(0.9)),
                "keeps_average: False and True",
            ),
            (
                lambda: luwu.optim.SGD(others(model), loss_scale="dynamic"),
                "whole steps, loss_scale: Dynamic",
            ),
        ):
            with pytest.raises(ConfigError, match=reason):
                make()
        first = luwu.optim.SGD(others(model)[:2], lr=0.1, momentum=0.9)
        with pytest.raises(ConfigError, match="requires a gradient but is in no group"):
            square_loss(model, 0, 0, 0)
        optimizers = [
            luwu.optim.SGD(matrices(model), lr=0.1, max_grad_norm=1.0),
            luwu.optim.SGD(others(model), lr=0.1, momentum=0.9),
        ]
        with pytest.raises(ConfigError, match="has an optimizer already"):
            luwu.optim.SGD(model.parameters())
        square_loss(model, 0, 0, 0).backward()
        with pytest.raises(ConfigError, match="none of this run's"):
            first.step()
        optimizers[0].step()
        with pytest.raises(ConfigError, match=r"max_grad_norm \['1\.0', 'None'\]"):
            optimizers[1].step()
        optimizers[1].max_grad_norm = 1.0
        assert optimizers[1].step().applied


@pytest.mark.feature("several optimizers in one run")
def test_gradients_that_are_kept_here_belong_to_their_optimizer() -> None:
    """Goal: zero_grad() of one optimizer forgets those of its own parameters alone."""
    with worker(FakeNetwork(1)) as session:
        models = sharded(), sharded(Critic, 8)
        first, second = (luwu.optim.AdamW(model.parameters()) for model in models)
        for model in models:
            model.set_requires_gradient_sync(False)
            square_loss(model, 0, 0, 0).backward()
        first.zero_grad()
        kept = [unit.name for unit in session.units if any(k is not None for k in unit.kept)]
        assert kept
        assert all(name.startswith("Critic") for name in kept)
        with pytest.raises(StepOrderError, match="keeps gradients that were not pushed"):
            first.step()
        second.zero_grad()
        assert not any(k is not None for unit in session.units for k in unit.kept)
        for model in models:
            model.set_requires_gradient_sync(True)
        square_loss(models[0], 0, 0, 0).backward()
        assert first.step().applied
