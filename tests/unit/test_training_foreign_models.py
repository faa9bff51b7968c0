"""What the classes of other libraries' models do, without these libraries.

tests/integrations has the real ones.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor, nn

import luwu
from luwu.base.errors import StepOrderError
from tests.unit.fake_nic import FakeNetwork
from tests.unit.training_harness import (
    one_thread,  # noqa: F401 - for every test here
    worker,
)


class Registered(nn.Linear):
    """Looks up the type hints of every class that derives from it."""

    hints: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.hints = get_type_hints(cls)


def test_a_class_that_looks_up_type_hints_can_be_sharded() -> None:
    with worker(FakeNetwork(1)):
        model = luwu.fully_shard(Registered(8, 8))
        luwu.optim.SGD(model.parameters(), lr=0.1)
        assert isinstance(model, luwu.LuwuModule)
        assert model(torch.ones(2, 8)).shape == (2, 8)


class Remembers(nn.Module):
    """Keeps what it computed in an object that the caller passes on, as a KV cache does."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(8, 8)
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor, cache: SimpleNamespace) -> Tensor:
        cache.layers.append({"keys": self.keys(x)})
        keys = torch.stack([layer["keys"] for layer in cache.layers])
        result: Tensor = self.out(keys.sum(0))
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Remembers()

    def forward(self, x: Tensor, cache: SimpleNamespace) -> Tensor:
        result: Tensor = self.block(x, cache)
        return result


@pytest.mark.feature("a cache of keys and values that keeps a graph")
def test_a_cache_that_holds_a_graph_is_refused() -> None:
    """Goal: a second forward does not reach, through a cache, weights that are freed by then: its
    backward would read freed memory. Without a graph the cache goes through."""
    x = torch.ones(2, 8)
    with worker(FakeNetwork(1)):
        model = Model()
        luwu.fully_shard(model.block)
        luwu.fully_shard(model)
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        cache = SimpleNamespace(layers=[])
        model(x, cache)
        with pytest.raises(StepOrderError, match=r"SimpleNamespace.*torch\.no_grad"):
            model(x, cache)

        cache = SimpleNamespace(layers=[])
        with torch.no_grad():
            model(x, cache)
        model(x, cache).sum().backward()
        optimizer.step()


@pytest.mark.feature("freezing for an evaluation")
def test_what_is_frozen_during_evaluation_may_be_thawed_again() -> None:
    """Goal: a library may freeze parameters while it evaluates (PEFT: `disable_adapter`)."""
    x = torch.ones(2, 8)
    with worker(FakeNetwork(1)):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        luwu.fully_shard(model[0])
        luwu.fully_shard(model)
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        model.requires_grad_(False)
        with torch.no_grad():
            model(x)
        model.requires_grad_(True)
        model(x).sum().backward()
        assert optimizer.step().applied
