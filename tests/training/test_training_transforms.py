"""Transforms of torch.func over a sharded model's inputs: as plain torch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, func, nn

import luwu
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.training_harness import worker

Model = Callable[[Tensor], Tensor]
X = torch.arange(6.0).view(2, 3) / 6
TRANSFORMS: dict[str, Callable[[Model], Any]] = {
    "grad": lambda model: func.grad(lambda x: model(x).sum())(X),
    "grad_and_value": lambda model: func.grad_and_value(lambda x: model(x).sum())(X)[0],
    "vjp": lambda model: func.vjp(model, X)[1](X)[0],
    "jvp": lambda model: func.jvp(model, (X,), (X,))[1],
    "jacrev": lambda model: func.jacrev(model)(X),
    "jacfwd": lambda model: func.jacfwd(model)(X),
    "hessian": lambda model: func.hessian(lambda x: model(x).sum())(X),
    "vmap": lambda model: func.vmap(model)(X),
    "vmap of grad": lambda model: func.vmap(func.grad(lambda x: model(x).sum()))(X),
}


def make() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))


def shard(model: Any) -> Any:
    luwu.fully_shard(model[0])
    luwu.fully_shard(model[2])
    luwu.fully_shard(model)
    return luwu.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.feature("torch.func over inputs")
@pytest.mark.parametrize("name", sorted(TRANSFORMS))
@pytest.mark.parametrize("is_first", [True, False])
def test_transforms_over_inputs_equal_torch(name: str, is_first: bool) -> None:
    """Goal: the same values, also where the first forward of all is inside the transform; the
    training around it is not disturbed."""
    plain = make()
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    network = FakeNetwork(1)
    with worker(network):
        model = make()
        optimizer = shard(model)
        for step in range(3):
            if is_first or step:
                found, expected = TRANSFORMS[name](model), TRANSFORMS[name](plain)
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
            for each, of in ((model, optimizer), (plain, reference)):
                of.zero_grad()
                each(X).square().sum().backward()
                of.step()
    for each_name, value in network.masters().items():
        torch.testing.assert_close(value, dict(plain.named_parameters())[each_name].detach())


@pytest.mark.feature("torch.func over inputs")
def test_what_ran_in_a_transform_is_freed() -> None:
    """I5. Goal: units keep their weights for the backward inside of `torch.func.grad`, and no
    longer than until the next forward outside of a transform."""
    with worker(FakeNetwork(1)) as session:
        model = make()
        shard(model)
        func.grad(lambda x: model(x).sum())(X)
        assert all(unit.is_installed for unit in session.units)
        with torch.no_grad():
            model(X)
        assert not any(unit.is_installed for unit in session.units)


@pytest.mark.feature("torch.func over inputs")
def test_gradients_of_weights_through_a_transform_are_refused() -> None:
    """I6. Goal: what would not be pushed is refused at step(), with what to do."""
    with worker(FakeNetwork(1)):
        model = make()
        optimizer = shard(model)
        func.grad(lambda x: model(x).sum())(X).square().sum().backward()
        with pytest.raises(luwu.StepOrderError, match=r"inside a transform of torch\.func"):
            optimizer.step()
