"""The arm `ina-allreduce`: a replicated model whose gradients are summed in the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from luwu.base.errors import LuwuError
from luwu.launch.local_cluster import LocalCluster
from luwu.nic.shell import Nic
from workers.allreduce import NetworkAllReduce

WORLD = 2
STEPS = 3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrix products have other bits with other numbers of threads; `worker` says so too, since
    each thread has a number of its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model() -> nn.Sequential:
    """The same in every thread."""
    made = nn.Sequential(nn.Linear(96, 130), nn.Tanh(), nn.Linear(130, 7))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, 0.1, generator=generator)
    return made


def units_of(module: nn.Sequential) -> list[tuple[str, list[tuple[str, nn.Parameter]]]]:
    return [
        (f"layer{i}", [(f"{i}.{name}", p) for name, p in layer.named_parameters()])
        for i, layer in enumerate(module)
        if any(True for _ in layer.parameters())
    ]


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 96, generator=torch.Generator().manual_seed(100 * step + rank))


def backward(module: nn.Module, step: int, rank: int) -> None:
    module.zero_grad()
    module(batch(step, rank)).square().mean().backward()


def network(tmp_path: Path, **changes: Any) -> LocalCluster:
    return LocalCluster(
        world_size=WORLD, state=None, memory_budget_bytes=64 * 1024**2,
        summary=tmp_path / "summary.json", **changes,
    )  # fmt: skip


def reference(dtype: torch.dtype) -> nn.Module:
    """The same in one loop: gradients rounded as they travel, added in rank order, divided once,
    and the mean rounded as it travels back."""
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)
    for step in range(STEPS):
        totals = [torch.zeros_like(p) for p in module.parameters()]
        for rank in range(WORLD):
            backward(module, step, rank)
            for total, parameter in zip(totals, module.parameters(), strict=True):
                assert parameter.grad is not None
                total.add_(parameter.grad.to(dtype).float())
        for total, parameter in zip(totals, module.parameters(), strict=True):
            parameter.grad = (total / WORLD).to(dtype).float()
        optimizer.step()
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("has_switch", "extent_chunks"), [(True, 1), (False, 1), (True, 2)],
    ids=["switch", "no-switch", "extents"],
)  # fmt: skip
def test_every_worker_gets_the_mean_gradient(
    has_switch: bool, extent_chunks: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Goal: all replicas stay equal, bit for bit those of a plain loop. Method: AdamW on what the
    network gives back, over a real switch and node."""

    def worker(nic: Nic) -> list[torch.Tensor]:
        torch.set_num_threads(1)
        module = model()
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)
        reduce = NetworkAllReduce(nic, units_of(module), dtype, {})
        for step in range(STEPS):
            backward(module, step, nic.rank)
            reduce.finish_step()
            optimizer.step()
        reduce.leave()
        return [parameter.detach() for parameter in module.parameters()]

    with network(tmp_path, has_switch=has_switch, extent_chunks=extent_chunks) as cluster:
        results = cluster.run(worker)
    for weights in results:
        for found, expected in zip(weights, reference(dtype).parameters(), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("is_missing", "said"),
    [
        (False, "the gradient is not finite"),
        (True, "not all parameters of layer2 got a gradient"),
    ],
    ids=["nan", "missing"],
)
def test_what_cannot_be_reduced_ends_the_run(is_missing: bool, said: str, tmp_path: Path) -> None:
    """I6. Goal: a gradient that is not finite, or none at all, is never a silent step."""

    def worker(nic: Nic) -> str:
        module = model()
        reduce = NetworkAllReduce(nic, units_of(module), torch.float32, {})
        if is_missing:
            module[2].bias.requires_grad_(False)
            backward(module, 0, nic.rank)
        else:
            module.zero_grad()
            output = module(batch(0, nic.rank))
            (output.square().mean() * (torch.nan if nic.rank else 1.0)).backward()
        with pytest.raises(LuwuError, match=said) as caught:
            reduce.finish_step()
        return str(caught.value)

    with network(tmp_path) as cluster:
        assert len(cluster.run(worker)) == WORLD
