"""A parameter that the script also holds outside of its module's parameters.

`fully_shard` makes placeholders of parameters. Who held another tensor than the module's would
compute with first values for ever: other numbers than torch, without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import luwu
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import digest_of, in_cluster, seeded, train_steps
from tests.helpers.training_harness import worker


class Holds(nn.Module):
    """`inner.weight` twice: by its module, and by what `hold` makes of it."""

    def __init__(self, hold: Callable[[nn.Parameter], Any]) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.held = hold(self.inner.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The weight that is held, behind the module's own."""
        out: torch.Tensor = self.inner(x) @ self.weight()
        return out

    def weight(self) -> torch.Tensor:
        """As whatever holds it gives it."""
        held = self.held
        if callable(held):
            held = held()
        while isinstance(held, (list, tuple, dict)):
            held = next(iter(held.values())) if isinstance(held, dict) else held[-1]
        assert isinstance(held, torch.Tensor)
        return held


HOLDERS: dict[str, Callable[[nn.Parameter], Any]] = {
    "list": lambda weight: [weight],
    "nested": lambda weight: {"a": [None, ({"b": weight},)]},
    "closure": lambda weight: lambda: weight,
}


class Recurrent(nn.Module):
    """torch itself keeps weights of an LSTM in a list, and renews it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)[0]
        return out


@pytest.mark.feature("a parameter that is also referenced elsewhere")
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("use", ["trained", "frozen", "evaluated"])
@pytest.mark.parametrize("inner_first", [False, True])
def test_what_holds_a_parameter_holds_its_placeholder(
    holder: str, use: str, inner_first: bool
) -> None:
    """Goal: it is refused at the line that computes with it, also where no gradient is asked for.

    Plain torch would compute with the weights of now, and a tensor that was kept has the first.
    """
    with worker(FakeNetwork(1)):
        model = Holds(HOLDERS[holder])
        model.inner.weight.requires_grad_(use != "frozen")
        if inner_first:
            luwu.fully_shard(model.inner)
        luwu.fully_shard(model)
        luwu.optim.SGD(model.parameters(), lr=0.1)
        with (
            torch.set_grad_enabled(use != "evaluated"),
            pytest.raises(luwu.LuwuError, match=r"inner\.weight are in the network.*a list or"),
        ):
            model(torch.ones(1, 4))


def test_a_module_outside_that_shares_a_parameter_computes_with_no_other_values() -> None:
    """Goal: a network beside the model, which was never sharded, shares its placeholder."""
    with worker(FakeNetwork(1)):
        model, beside = nn.Linear(4, 4), nn.Linear(4, 4)
        beside.weight = model.weight
        luwu.fully_shard(model)
        assert beside.weight is model.weight
        with pytest.raises(luwu.LuwuError, match=r"weight of Linear are in the network"):
            beside(torch.ones(1, 4))


def test_parameters_that_were_listed_before_are_those_that_are_trained() -> None:
    with worker(FakeNetwork(1)):
        model = nn.Linear(4, 4)
        listed = list(model.parameters())
        luwu.fully_shard(model)
        luwu.optim.SGD(listed, lr=0.1)
        model(torch.ones(1, 4)).sum().backward()


@pytest.mark.feature("fully_shard after a forward whose graph is alive")
def test_a_parameter_in_a_graph_is_refused() -> None:
    """Goal: what a graph or compiled code holds would be computed with as it was."""
    with worker(FakeNetwork(1)):
        model = nn.Linear(4, 4)
        out = model(torch.ones(1, 4, requires_grad=True))
        with pytest.raises(luwu.ConfigError, match=r"weight of Linear .* graph of an earlier"):
            luwu.fully_shard(model)
        del out


def test_an_ignored_parameter_may_be_held() -> None:
    with worker(FakeNetwork(1)):
        model = Holds(HOLDERS["list"])
        luwu.fully_shard(model, ignored_params={model.inner.weight})
        assert model.held[0] is model.inner.weight


def test_an_lstm_trains_as_with_torch(tmp_path: Path) -> None:
    """I1. Goal: torch's own list of weights is no holder. Method: a real switch and node."""

    def work(rank: int) -> None:
        model = seeded(Recurrent)
        luwu.fully_shard(model)
        train_steps(model, luwu.optim.SGD(model.parameters(), lr=0.1), 0, 3)

    plain = seeded(Recurrent)
    train_steps(plain, torch.optim.SGD(plain.parameters(), lr=0.1, fused=True), 0, 3)
    assert in_cluster(tmp_path, work).digest == digest_of(dict(plain.named_parameters()))
