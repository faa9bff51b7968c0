"""Modules whose activations are offloaded, beside the same in plain torch."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import luwu
from luwu.activations import ActivationStats

KIB = 1024
KINDS = ["none", "reentrant", "nonreentrant"]


def offloaded(module: Any, directory: Path, memory_budget: str | int = 0, **more: Any) -> Any:
    arguments = {"memory_budget": memory_budget, "directory": directory, "min_bytes": 256, **more}
    return luwu.offload_activations(module, **arguments)


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def same(found: list[Tensor | None], expected: list[Tensor | None]) -> bool:
    """Bit for bit."""
    return len(found) == len(expected) and all(
        a is b if a is None or b is None else torch.equal(a, b)
        for a, b in zip(found, expected, strict=True)
    )


def compare(
    make: Callable[[], nn.Module], run: Callable[[nn.Module], Any], directory: Path, **more: Any
) -> ActivationStats:
    """Gradients and results of `run` are the same with and without; what was done for it."""
    plain, moved = make(), offloaded(make(), directory, **more)
    expected, found = run(plain), run(moved)
    assert same(gradients(moved), gradients(plain))
    if expected is not None:
        assert torch.equal(found, expected)
    stats = luwu.activation_stats(moved)
    assert stats.saved_bytes > 0
    nothing_is_left(moved, directory)
    return stats


def nothing_is_left(module: nn.Module, directory: Path) -> None:
    """A3, after the graph is gone."""
    gc.collect()
    store = module.__dict__["luwu_offload"].store
    stats = store.stats()
    assert (stats.live_bytes, stats.waiting_bytes) == (0, 0)
    if stats.disk_bytes:
        assert store._places.take(stats.disk_bytes) == 0, "a place was not given back"
        store._places.give(0, stats.disk_bytes)
    assert list(directory.iterdir()) == []


@contextmanager
def file_limit(nbytes: int) -> Iterator[None]:
    """No file of this process may be longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Function(nn.Module):
    """A module around a function of (weight, input)."""

    def __init__(self, fn: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.weight = nn.Parameter(torch.randn(32, 32))
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.weight, x)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(9))


def once(module: nn.Module) -> Tensor:
    """One forward and backward."""
    x = numbers(48, 32).requires_grad_()
    y = module(x)
    y.square().sum().backward()
    assert x.grad is not None
    return x.grad


def of(fn: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Function(fn)
