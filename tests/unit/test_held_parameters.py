"""A parameter that the script also holds outside of its module's parameters.

`fully_shard` puts placeholders into modules. Who holds the tensor that was there would compute with
first values for ever: other numbers than torch, without a word.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import luwu
from tests.unit.fake_nic import FakeNetwork
from tests.unit.real_training import in_cluster
from tests.unit.training_harness import one_thread, worker  # noqa: F401 - for every test here

HOLDERS: dict[str, Callable[[nn.Parameter], Any]] = {
    "list": lambda weight: [weight],
    "tuple": lambda weight: (1, weight),
    "dict": lambda weight: {"w": weight},
    "nested": lambda weight: {"a": [None, ({"b": weight},)]},
}


class Holds(nn.Module):
    """`inner.weight` twice: by its module, and by what `hold` makes of it."""

    def __init__(self, hold: Callable[[nn.Parameter], Any]) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.held = hold(self.inner.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Never called."""
        raise NotImplementedError


class Recurrent(nn.Module):
    """torch itself keeps weights of an LSTM in a list, and renews it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)[0]
        return out


@pytest.mark.feature("calls that would do nothing")
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("inner_first", [False, True])
def test_an_attribute_that_holds_a_parameter_is_refused(
    holder: str, frozen: bool, inner_first: bool
) -> None:
    """Goal: refused where the model is sharded, also if it is frozen or only evaluated."""
    with worker(FakeNetwork(1)):
        model = Holds(HOLDERS[holder])
        model.inner.weight.requires_grad_(not frozen)
        if inner_first:
            luwu.fully_shard(model.inner)
        with pytest.raises(
            luwu.ConfigError, match=r"attribute held of Holds .* parameter inner\.weight"
        ):
            luwu.fully_shard(model)


def test_an_ignored_parameter_may_be_held() -> None:
    with worker(FakeNetwork(1)):
        model = Holds(HOLDERS["list"])
        luwu.fully_shard(model, ignored_params={model.inner.weight})
        assert model.held[0] is model.inner.weight


@pytest.mark.feature("calls that would do nothing")
def test_a_gradient_for_a_parameter_that_was_replaced_is_refused() -> None:
    """Goal: where no attribute shows it (a closure, a global), the backward refuses it."""
    with worker(FakeNetwork(1)):
        model = nn.Linear(4, 4)
        held = model.weight
        luwu.fully_shard(model)
        luwu.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(1, 4)
        with pytest.raises(luwu.ConfigError, match=r"weight of Linear .* first values"):
            (model(x).tanh() + x @ held).sum().backward()


def test_a_tied_parameter_is_none_that_is_held() -> None:
    with worker(FakeNetwork(1)):
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        for module in (first, second, nn.Sequential(first, second)):
            luwu.fully_shard(module)
        assert first.weight is second.weight


def test_an_lstm_trains_as_with_torch(tmp_path: Path) -> None:
    """I1. Goal: torch's own list of weights is no holder. Method: a real switch and node."""
    torch.manual_seed(0)
    reference = Recurrent()
    model = copy.deepcopy(reference)
    x = torch.ones(1, 3, 4)

    def work(rank: int) -> dict[str, torch.Tensor]:
        luwu.fully_shard(model)
        ours = luwu.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            (model(x) - 1).square().sum().backward()
            ours.step()
        return luwu.get_model_state_dict(model)

    found = in_cluster(tmp_path, work).results[0]
    theirs = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        theirs.zero_grad()
        (reference(x) - 1).square().sum().backward()
        theirs.step()
    for name, expected in reference.state_dict().items():
        assert torch.equal(found[name], expected), name
