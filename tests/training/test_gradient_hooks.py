"""Hooks that a script registers on parameters after fully_shard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import luwu
from tests.helpers.real_training import digest_of, in_cluster, seeded, sharded, train_steps
from tests.helpers.small_models import Numbers, Stack

pytestmark = pytest.mark.feature("register_hook, register_post_accumulate_grad_hook")


def register(model: nn.Module, calls: list[str]) -> None:
    """Hooks of both kinds on every parameter; some change the gradient, by either way."""

    def scale(name: str) -> Any:
        def hook(grad: Tensor) -> Tensor:
            calls.append(f"scale {name}")
            return grad * 0.5

        return hook

    def clamp(name: str) -> Any:
        def hook(parameter: Tensor) -> None:
            calls.append(f"clamp {name}")
            assert parameter.grad is not None
            assert parameter.shape == parameter.grad.shape
            parameter.grad.clamp_(-1e-3, 1e-3).add_(parameter.detach(), alpha=1e-2)

        return hook

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(clamp(name))
        parameter.register_hook(scale(name))
        parameter.register_hook(lambda grad: calls.append("seen"))


@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_hooks_change_the_gradient_as_in_torch(update: str, tmp_path: Path) -> None:
    """I4. Goal: the same calls, and bit for bit the same weights, as in plain torch."""
    calls: list[str] = []
    plain = seeded(Stack)
    register(plain, calls)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, fused=True)
    train_steps(plain, optimizer, 0, 3)

    def work(_: int) -> list[str]:
        model = sharded()
        ours: list[str] = []
        register(model, ours)
        network = luwu.optim.AdamW(model.parameters(), lr=1e-2, update=update)
        train_steps(model, network, 0, 3)
        return ours

    found = in_cluster(tmp_path, work)
    assert sorted(found.results[0]) == sorted(calls)
    assert found.digest == digest_of(dict(plain.named_parameters()))


def test_hooks_come_and_go(tmp_path: Path) -> None:
    """Goal: a hook that is removed runs no more; of a parameter without a gradient none runs; a
    frozen one takes none, as in torch; without its gradient a parameter is skipped."""

    def work(_: int) -> None:
        model: Any = Numbers()
        luwu.fully_shard(model)
        calls: list[str] = []
        handle = model.a.register_hook(lambda grad: calls.append("a"))
        model.b.register_post_accumulate_grad_hook(lambda p: calls.append("b"))
        with pytest.raises(RuntimeError, match="c of Numbers requires no gradient"):
            model.c.register_hook(print)
        optimizer = luwu.optim.SGD([model.a, model.b], lr=1.0)
        model("ab").backward()
        optimizer.step()
        model("a").backward()
        optimizer.step()
        assert sorted(calls) == ["a", "a", "b"]
        handle.remove()

        def drop(parameter: nn.Parameter) -> None:
            parameter.grad = None

        model.b.register_post_accumulate_grad_hook(drop)
        model("abc").backward()
        optimizer.step()
        assert sorted(calls) == ["a", "a", "b", "b"]
        weights = luwu.get_model_state_dict(model)
        assert weights["a"].tolist() == [-2]
        assert weights["b"].tolist() == [0]

    in_cluster(tmp_path, work)


def test_a_hook_with_accumulation(tmp_path: Path) -> None:
    """Goal: with several backwards in a step a hook gets the gradient of each."""

    def work(_: int) -> None:
        model: Any = nn.Linear(1, 1, bias=False)
        luwu.fully_shard(model)
        seen: list[float] = []
        model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.item()))
        optimizer = luwu.optim.SGD(model.parameters(), lr=1.0)
        for x in (1.0, 2.0):
            model(torch.full((1, 1), x)).sum().backward()
        optimizer.step()
        model.set_requires_gradient_sync(False)
        model(torch.full((1, 1), 3.0)).sum().backward()
        model.set_requires_gradient_sync(True)
        model(torch.full((1, 1), 4.0)).sum().backward()
        assert optimizer.step().grad_norm == 7
        assert seen == [1, 2, 3, 4]

    in_cluster(tmp_path, work)
