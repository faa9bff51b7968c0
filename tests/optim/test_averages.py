"""Averages of the weights, which the node keeps beside them: luwu.ema and luwu.swa."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import luwu
from luwu.checkpoint.export_state import ExportOptions, export_state
from luwu.checkpoint.source import RestingState, RunningState
from luwu.commands.main import main
from luwu.optim.averages import WeightAverage
from luwu.wire.stored import average_rate
from tests.helpers.real_training import (
    digest_of,
    in_cluster,
    in_every_way,
    seeded,
    sharded,
    train_steps,
)
from tests.helpers.small_models import Numbers, batch

KIB = 1024
DECAY, START, EVERY = 0.99, 50, 3
RULES: dict[str, WeightAverage] = {"ema": luwu.ema(DECAY), "swa": luwu.swa(START, EVERY)}


def work_with(rule: WeightAverage | None, steps: int) -> Callable[[int], tuple[str, str]]:
    """A rank of a job with AdamW; digests of its weights and of their average after some steps."""

    def work(rank: int) -> tuple[str, str]:
        model = sharded()
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, average=rule)
        train_steps(model, optimizer, 0, steps, rank)
        weights = luwu.get_model_state_dict(model)
        average = {} if rule is None else luwu.get_model_state_dict(model, average=True)
        return digest_of(weights), digest_of(average)

    return work


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


@pytest.mark.feature("an average of the weights")
@pytest.mark.parametrize(
    ("rule", "optimizer"),
    [
        ("ema", "AdamW"), ("swa", "SGD"), pytest.param("swa", "AdamW", marks=pytest.mark.slow),
        pytest.param("ema", "SGD", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_an_average_is_that_of_torch(rule: str, optimizer: str, tmp_path: Path) -> None:
    """I4. Goal: within 1e-6 of torch's AveragedModel after 200 steps; the weights are what they are
    without an average. Method: both in one process."""
    arguments = {"lr": 1e-3} if optimizer == "AdamW" else {"lr": 1e-2, "momentum": 0.9}

    def work(_: int) -> None:
        plain = seeded(small)
        theirs = getattr(torch.optim, optimizer)(plain.parameters(), **arguments, fused=True)
        multi = get_ema_multi_avg_fn(DECAY) if rule == "ema" else None
        average = AveragedModel(plain, multi_avg_fn=multi)
        model = seeded(small)
        luwu.fully_shard(model)
        ours = getattr(luwu.optim, optimizer)(model.parameters(), **arguments, average=RULES[rule])
        for step in range(200):
            train_steps(plain, theirs, step, step + 1)
            train_steps(model, ours, step, step + 1)
            if rule == "ema" or (step >= START and (step - START) % EVERY == 0):
                average.update_parameters(plain)
        weights = luwu.get_model_state_dict(model)
        found = luwu.get_model_state_dict(model, average=True)
        for name, expected in plain.state_dict().items():
            assert torch.equal(weights[name], expected), name
            theirs_now = average.module.state_dict()[name]
            difference = (found[name] - theirs_now).abs().max() / theirs_now.abs().max()
            assert difference < 1e-6, name
            assert not torch.equal(found[name], expected), name

    in_cluster(tmp_path, work)


@pytest.mark.feature("an average of the weights")
@pytest.mark.parametrize("rule", ["ema", pytest.param("swa", marks=pytest.mark.slow)])
def test_an_average_has_one_digest(rule: str, tmp_path: Path) -> None:
    """I3. Goal: the same bits whatever the chunks, the memory, the nodes and the replicas; the
    weights are those of a job without it."""
    work = work_with(luwu.ema(0.9) if rule == "ema" else luwu.swa(1, 2), 5)
    weights, _ = in_every_way(tmp_path, work)
    without = in_cluster(tmp_path / "without", work_with(None, 5), world_size=2)
    assert without.results[0][0] == weights


@pytest.mark.feature("an average of the weights")
def test_an_average_is_exported_while_training_goes_on(tmp_path: Path) -> None:
    """Goal: an export holds the average of the decided step that was opened; the training does not
    change by it. Method: two more steps between opening and reading."""

    def work(reads: bool) -> Callable[[int], None]:
        def of_rank(rank: int) -> None:
            model = sharded()
            optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, average=luwu.ema(0.9))
            train_steps(model, optimizer, 0, 4)
            if not reads:
                train_steps(model, optimizer, 4, 6)
                return
            expected = luwu.get_model_state_dict(model, average=True)
            with RunningState(luwu.session().open_reader()) as source:
                train_steps(model, optimizer, 4, 6)
                exported = export_state(source, tmp_path / "out", ExportOptions(average=True))
            found = load_file(tmp_path / "out" / "model.safetensors")
            assert (exported.step, digest_of(found)) == (4, digest_of(expected))

        return of_rank

    digests = {in_cluster(tmp_path / str(reads), work(reads)).digest for reads in (True, False)}
    assert len(digests) == 1


@pytest.mark.feature("an average of the weights")
def test_an_average_goes_through_files(tmp_path: Path) -> None:
    """Goal: an average is exported in place of the weights; where only weights are brought, it
    begins with them. (Exports of all: `test_state_dtypes.py`, `test_muon.py`.)"""
    state = tmp_path / "state"

    def train(_: int) -> dict[str, Tensor]:
        model = sharded()
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, average=luwu.ema(0.9))
        train_steps(model, optimizer, 0, 4)
        return luwu.get_model_state_dict(model, average=True)

    before = in_cluster(tmp_path / "a", train, state=state).results[0]
    assert main(["export", str(state), str(tmp_path / "averaged"), "--average"]) == 0
    exported = load_file(tmp_path / "averaged" / "model.safetensors")
    assert all(torch.equal(exported[name], before[name]) for name in before)

    def begin(_: int) -> dict[str, Tensor]:
        model = sharded(seed=8)
        luwu.load_pretrained(model, tmp_path / "averaged")
        luwu.optim.AdamW(model.parameters(), lr=1e-2, average=luwu.ema(0.9))
        return luwu.get_model_state_dict(model, average=True)

    begun = in_cluster(tmp_path / "b", begin).results[0]
    assert all(torch.equal(begun[name], before[name]) for name in before)


@pytest.mark.feature("an average of the weights")
def test_an_average_begins_with_the_weights_of_a_state_dict_of_torch(tmp_path: Path) -> None:
    """Goal: torch's has none. (One that has it: `test_muon.py`.)"""
    weights: dict[str, Tensor] = {}
    given: dict[str, Any] = {}

    def first(_: int) -> None:
        model = sharded()
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2)
        train_steps(model, optimizer, 0, 4)
        weights.update(luwu.get_model_state_dict(model))
        given.update(luwu.get_optimizer_state_dict(model, optimizer))

    def second(_: int) -> None:
        model = sharded()
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, average=luwu.ema(0.9))
        luwu.set_model_state_dict(model, weights)
        luwu.set_optimizer_state_dict(model, optimizer, given)
        model(batch(4, 0, 0))
        found = luwu.get_model_state_dict(model, average=True)
        assert all(torch.equal(found[name], weights[name]) for name in weights)

    in_cluster(tmp_path / "first", first)
    in_cluster(tmp_path / "second", second)


@pytest.mark.feature("an average of the weights")
def test_only_updates_count(tmp_path: Path) -> None:
    """Goal: a step that is skipped, or has no gradient for a parameter, leaves its average alone;
    of a frozen parameter it is the weights. Method: by hand, with SGD."""

    def work(_: int) -> None:
        model = Numbers()
        luwu.fully_shard(model)
        optimizer = luwu.optim.SGD(
            [p for p in model.parameters() if p.requires_grad], lr=1.0, average=luwu.ema(0.5)
        )
        luwu.set_model_state_dict(model, {name: torch.full((1,), 8.0) for name in "abc"})

        def average() -> list[float]:
            found = luwu.get_model_state_dict(model, average=True)
            return [found[name].item() for name in "abc"]

        assert average() == [8, 8, 8]
        model("ab").backward()
        optimizer.step()
        assert average() == [7, 7, 8]
        model("a").backward()
        optimizer.step()
        assert average() == [6.5, 7, 8]
        model("ab").backward()
        optimizer.skip_step()
        assert average() == [6.5, 7, 8]
        optimizer.average = luwu.ema(0.75)
        model("ab").backward()
        optimizer.step()
        assert average() == [6.125, 6.75, 8]

    in_cluster(tmp_path, work)


def test_rates_of_swa() -> None:
    """Goal: each sample counts as much, whatever lies between; before the first, the average is the
    weights."""
    hyper = luwu.swa(5, 3).numbers
    assert [average_rate(hyper, updates) for updates in range(13)] == [
        1, 1, 1, 1, 1, 1, 0, 0, 1 / 2, 0, 0, 1 / 3, 0,
    ]  # fmt: skip


@pytest.mark.feature("an average of the weights")
def test_what_cannot_be_averaged_is_refused(tmp_path: Path) -> None:
    """Goal: numbers out of range, another kind of thing, and reading an average that is not kept
    are refused in words."""
    for make, text in (
        (lambda: luwu.ema(1.0), r"ema: decay must be in \[0, 1\), got 1\.0"),
        (lambda: luwu.ema(-0.1), "ema: decay"),
        (lambda: luwu.swa(-1), "swa: start"),
        (lambda: luwu.swa(1, 0), "swa: every"),
    ):
        with pytest.raises(luwu.ConfigError, match=text):
            make()

    def work(_: int) -> None:
        model = sharded()
        with pytest.raises(luwu.ConfigError, match=r"average must be luwu\.ema"):
            luwu.optim.SGD(model.parameters(), lr=0.1, average=0.9)  # type: ignore[arg-type]
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        train_steps(model, optimizer, 0, 1)
        with pytest.raises(luwu.ConfigError, match=r"keeps no average.*average=luwu\.ema"):
            luwu.get_model_state_dict(model, average=True)
        with pytest.raises(luwu.ConfigError, match="is fixed when the optimizer is created"):
            optimizer.average = luwu.ema(0.9)

    in_cluster(tmp_path, work)
    state = tmp_path / "state"
    in_cluster(tmp_path, work_with(None, 1), state=state)
    with RestingState(state) as source, pytest.raises(luwu.ConfigError, match="keeps no average"):
        export_state(source, tmp_path / "out", ExportOptions(average=True))
    assert not (tmp_path / "out").exists()
