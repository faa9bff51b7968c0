"""torch's own inputs for its optimizer tests, given to ours and run through a node.

`optim_db` lists what torch tries each of its optimizers with. Each input must end with the bits of
torch's fused optimizer, or be refused; what torch refuses, ours refuses too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import luwu
from luwu.base.errors import ConfigError
from tests.helpers.real_training import digest_of, in_cluster, seeded

STEPS = 5
OURS = {name: getattr(luwu.optim, name) for name in ("SGD", "Adam", "AdamW", "Lion")}
TORCHS = ("SGD", "Adam", "AdamW")
"""Those that torch has too."""
TAKEN = "betas must be either both floats or both Tensors"
"""What torch refuses for how its kernels take it: here hyper-parameters travel as numbers."""
REFUSED = {"amsgrad"}
"""Options that mean nothing here; the message says why."""


def info_of(name: str) -> Any:
    """What the database has of an optimizer. It is read by the tests that need it: reading takes
    three seconds, and every test process collects this module."""
    from torch.testing._internal.common_optimizers import optim_db

    (found,) = (info for info in optim_db if info.optim_cls.__name__ == name)
    return found


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))  # whole vectors: I4


def train(model: nn.Module, optimizer: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 16, generator=generator)).square().mean().backward()
        optimizer.step()


def by_luwu(directory: Path, make: Callable[[Any], Any]) -> str:
    """The digest of the weights after some steps, through a node."""

    def work(_: int) -> None:
        model = luwu.fully_shard_each(seeded(make_model), nn.Linear)
        train(model, make(model.parameters()))

    return in_cluster(directory, work).digest


def by_torch(make: Callable[[Any], Any]) -> str:
    model = seeded(make_model)
    train(model, make(model.parameters()))
    return digest_of(dict(model.named_parameters()))


@pytest.mark.feature("SGD, Adam, AdamW: torch's own test inputs")
@pytest.mark.parametrize("name", TORCHS)
def test_inputs_of_optim_db(name: str, tmp_path: Path) -> None:
    """I4. Goal: the bits of torch's fused optimizer, or a refusal that names the option."""
    inputs = info_of(name).optim_inputs_func(device="cpu")
    assert len(inputs) >= 5
    for number, each in enumerate(inputs):
        print(f"{name}: {each.desc}")  # shown where it fails
        options = dict(each.kwargs)
        refused = [option for option in options if option in REFUSED and options[option]]
        if refused:
            with pytest.raises(ConfigError, match=refused[0]):
                OURS[name](make_model().parameters(), **options)
            continue
        found = by_luwu(tmp_path / str(number), functools.partial(OURS[name], **options))
        theirs = functools.partial(getattr(torch.optim, name), fused=True, **options)
        assert found == by_torch(theirs) != digest_of(dict(seeded(make_model).named_parameters()))


@pytest.mark.parametrize("name", TORCHS)
def test_errors_of_optim_db(name: str) -> None:
    """Goal: what torch refuses is refused, before anything is sent."""
    found = info_of(name).optim_error_inputs_func(device="cpu", dtype=torch.float32)
    errors = [
        each
        for each in found
        if each.optimizer_error_input.kwargs  # else it is about parameters, not about options
        and each.error_regex != TAKEN
    ]
    assert errors
    for each in errors:
        print(f"{name}: {each.error_regex}")  # shown where it fails
        with pytest.raises((ConfigError, TypeError)):
            OURS[name](make_model().parameters(), **each.optimizer_error_input.kwargs)


def test_one_beta_may_be_a_tensor(tmp_path: Path) -> None:
    """Goal: `TAKEN` is no mistake here: its value is what counts."""
    beta = torch.tensor(0.95)
    found = by_luwu(tmp_path, functools.partial(luwu.optim.Adam, betas=(0.9, beta)))
    plain = functools.partial(torch.optim.Adam, betas=(0.9, beta.item()), fused=True)
    assert found == by_torch(plain)


@pytest.mark.feature("Lion")
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_lion_is_that_of_its_paper(maximize: bool, weight_decay: float, tmp_path: Path) -> None:
    """I4. Goal: the bits of algorithm 2 of arXiv 2302.06675, written down on whole tensors."""
    options: dict[str, Any] = {"maximize": maximize, "weight_decay": weight_decay, "lr": 1e-2}
    found = by_luwu(tmp_path, functools.partial(luwu.optim.Lion, **options))
    assert found == by_torch(lambda parameters: PlainLion(parameters, options))


class PlainLion(torch.optim.Optimizer):
    """Lion on whole tensors."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One update of all."""
        (group,) = self.param_groups
        for parameter in group["params"]:
            average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
            gradient = -parameter.grad if group["maximize"] else parameter.grad
            direction = torch.sign(torch.lerp(average, gradient, 1 - 0.9))
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.sub_(group["lr"] * direction)
            average.lerp_(gradient, 1 - 0.99)
