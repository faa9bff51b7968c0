"""Small models, their data, and training them both ways: through a network and by plain torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import luwu
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.training_harness import Loss, reference, train
from workers.gpt import GPT, GPTConfig, init_weights

STEPS = 4
TORCH: dict[str, Callable[..., Any]] = {
    "adam": functools.partial(torch.optim.Adam, fused=True),
    "adamw": functools.partial(torch.optim.AdamW, fused=True),
    "sgd": functools.partial(torch.optim.SGD, fused=True),
}
NETWORK: dict[str, Callable[..., Any]] = {
    "adam": luwu.optim.Adam,
    "adamw": luwu.optim.AdamW,
    "sgd": luwu.optim.SGD,
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "adam": {"lr": 1e-2, "betas": (0.8, 0.95), "weight_decay": 0.1},
    "adamw": {"lr": 1e-2, "betas": (0.8, 0.95), "weight_decay": 0.1},
    "sgd": {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
}


def batch(step: int, rank: int, part: int, width: int = 64) -> Tensor:
    generator = torch.Generator().manual_seed(step * 100 + rank * 10 + part)
    return torch.randn(8, width, generator=generator)


def square_loss(model: nn.Module, step: int, rank: int, part: int) -> Tensor:
    loss: Tensor = model(batch(step, rank, part)).square().mean()
    return loss


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return y


class TiedStack(nn.Module):
    """Tied weights, buffers of two kinds, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64, bias=False)
        self.norm = nn.BatchNorm1d(64)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last = nn.Linear(64, 64, bias=False)
        self.last.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(64), requires_grad=False)
        self.register_buffer("cache", torch.ones(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)) + self.frozen
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.last(x)
        return y


class Numbers(nn.Module):
    """Three of them, the last one frozen."""

    def __init__(self) -> None:
        super().__init__()
        for name in "abc":
            self.register_parameter(name, nn.Parameter(torch.ones(1), name != "c"))

    def forward(self, names: str) -> Tensor:
        total: Tensor = torch.stack([getattr(self, name) for name in names]).sum()
        return total


class Stack(nn.Module):
    """Blocks between parameters of the root."""

    def __init__(self, blocks: int = 4, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.last = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.last(x)
        return y


def make_stack(**arguments: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return Stack(**arguments)


def shard(model: nn.Module, **arguments: Any) -> None:
    luwu.fully_shard_each(model, Block, **arguments)


def compare(
    make: Callable[[], nn.Module] = make_stack, shard_model: Callable[[nn.Module], object] = shard,
    loss: Loss = square_loss, *, optimizer: str = "adamw", update: str = "at_step",
    world_size: int = 2, eager: bool = True, steps: int = STEPS, backwards: int = 1,
    groups: Callable[[nn.Module], Any] = lambda model: model.parameters(),
    before_step: Callable[[nn.Module, Any, int], object] = lambda *_: None,
    dtype: torch.dtype | None = None, rel: float = 0.0, **nic_options: Any,
) -> FakeNetwork:  # fmt: skip
    """Train both ways and compare every weight: bit for bit, unless `rel` is given."""
    arguments = ARGUMENTS[optimizer]
    network = FakeNetwork(world_size, eager=eager)
    train(
        network, make, shard_model,
        lambda model: NETWORK[optimizer](groups(model), update=update, **arguments), loss,
        steps=steps, backwards=backwards, before_step=before_step, **nic_options,
    )  # fmt: skip
    expected = reference(
        make, lambda model: TORCH[optimizer](groups(model), **arguments), loss,
        world_size=world_size, steps=steps, backwards=backwards, before_step=before_step,
        dtype=dtype,
    )  # fmt: skip
    torch.testing.assert_close(network.masters(), dict(expected), rtol=rel, atol=rel / 10)
    assert network.step == steps
    return network


def gpt_config(**changes: Any) -> GPTConfig:
    sizes: dict[str, Any] = {"layers": 3, "width": 64, "heads": 4, "context": 16, "vocab": 128}
    return GPTConfig(**{**sizes, **changes})


def make_gpt(config: GPTConfig) -> nn.Module:
    model = GPT(config)
    for module in model.modules():
        init_weights(module, 3)
    return model


def gpt_loss(model: nn.Module, step: int, rank: int, part: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * 100 + rank * 10 + part)
    ids = torch.randint(0, 128, (2, 17), generator=generator)
    logits = model(ids[:, :-1]).float()
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def shard_gpt(model: Any, **arguments: Any) -> None:
    for block in model.blocks:
        luwu.fully_shard(block, **arguments)
    luwu.fully_shard(model, **arguments)
