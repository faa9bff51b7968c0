"""What the classes of other libraries' models do, without these libraries.

tests/integrations has the real ones.
"""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
import torch
from torch import nn

import luwu
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.training_harness import (
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
