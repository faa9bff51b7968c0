"""torch's own inputs for its optimizer tests, given to ours and run through a node.

`optim_db` lists what torch tries each of its optimizers with. Each input must end with the bits of
torch's fused optimizer, or be refused; what torch refuses, ours refuses too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import luwu
from luwu.base.errors import ConfigError
from luwu.launch.local_cluster import LocalCluster
from luwu.nic.shell import Nic

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


class Seen(nn.Linear):
    """A layer that keeps what it computed with."""

    def forward(self, x: Tensor) -> Tensor:
        self.weights = [self.weight.detach().clone(), self.bias.detach().clone()]
        return super().forward(x)


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Seen(16, 32), nn.Tanh(), Seen(32, 16))  # whole vectors, as I4 says


def train(model: nn.Sequential, optimizer: Any) -> list[Tensor]:
    """The weights after some steps."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 16, generator=generator)).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        model(torch.zeros(1, 16))
    return [weights for layer in model if isinstance(layer, Seen) for weights in layer.weights]


def through_a_node(directory: Path, work: Callable[[nn.Sequential], Any]) -> Any:
    """`work(model)` of the one worker of a cluster, whose model is sharded."""

    def worker(nic: Nic) -> Any:
        luwu.init(nic=nic, device="cpu")
        model = make_model()
        luwu.fully_shard(model[0])
        luwu.fully_shard(model)
        found = work(model)
        luwu.finish()
        return found

    with LocalCluster(
        world_size=1, state=None, memory_budget_bytes=8 * 2**20, summary=directory / "summary.json"
    ) as cluster:
        return cluster.run(worker)[0]


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
        directory = tmp_path / str(number)
        directory.mkdir()
        same_bits(directory, name, options)


def same_bits(directory: Path, name: str, options: dict[str, Any]) -> None:
    """Train by ours and by torch's fused one, and compare; training changes something."""
    found = through_a_node(directory, lambda m: train(m, OURS[name](m.parameters(), **options)))
    model = make_model()
    expected = train(model, getattr(torch.optim, name)(model.parameters(), fused=True, **options))
    assert all(map(torch.equal, found, expected))
    assert not any(map(torch.equal, found, make_model().parameters()))


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
    found = through_a_node(
        tmp_path, lambda m: train(m, luwu.optim.Adam(m.parameters(), betas=(0.9, beta)))
    )
    model = make_model()
    plain = torch.optim.Adam(model.parameters(), betas=(0.9, beta.item()), fused=True)
    assert all(map(torch.equal, found, train(model, plain)))


@pytest.mark.feature("Lion")
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_lion_is_that_of_its_paper(maximize: bool, weight_decay: float, tmp_path: Path) -> None:
    """I4. Goal: the bits of algorithm 2 of arXiv 2302.06675, written down on whole tensors."""
    options: dict[str, Any] = {"maximize": maximize, "weight_decay": weight_decay, "lr": 1e-2}
    found = through_a_node(tmp_path, lambda m: train(m, luwu.optim.Lion(m.parameters(), **options)))
    model = make_model()
    assert all(map(torch.equal, found, train(model, PlainLion(model.parameters(), options))))


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
