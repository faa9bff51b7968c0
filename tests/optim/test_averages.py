"""Averages of the weights, which the node keeps beside them: luwu.ema and luwu.swa."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import luwu
from luwu.commands.main import main
from luwu.optim.averages import WeightAverage
from tests.helpers.real_training import in_cluster, seeded, sharded, train_steps
from tests.helpers.small_models import Numbers

DECAY, START, EVERY = 0.99, 50, 3
RULES: dict[str, WeightAverage] = {"ema": luwu.ema(DECAY), "swa": luwu.swa(START, EVERY)}


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
def test_an_average_goes_through_files(tmp_path: Path) -> None:
    """Goal: an average is exported in place of the weights; where only weights are brought, it
    begins with them. (Exports of all, and all ways to run: `test_state_dtypes.py`; checkpoints:
    `checkpoint/test_app_state.py`.)"""
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


@pytest.mark.feature("an average of the weights")
def test_what_cannot_be_averaged_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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

    in_cluster(tmp_path, work, state=tmp_path / "state")
    line = ["export", str(tmp_path / "state"), str(tmp_path / "out"), "--average"]
    assert main(line) == 2
    assert "keeps no average" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
