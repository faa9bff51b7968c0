"""Workers that compute with weights where the node wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import luwu
from luwu.launch.local_cluster import LocalCluster
from luwu.nic.shell import Nic

MIB = 2**20
STEPS = 4


def cluster_of(tmp_path: Path, *, has_switch: bool, world_size: int = 2) -> LocalCluster:
    return LocalCluster(
        world_size=world_size, state=None, memory_budget_bytes=64 * MIB, chunk_bytes=16 * 1024,
        transport="shm", has_switch=has_switch, summary=tmp_path / "summary.json",
    )  # fmt: skip


def train(nic: Nic, model: nn.Module, update: str = "streaming") -> Any:
    """A few steps; the session."""
    torch.set_num_threads(1)
    session = luwu.init(nic=nic, device="cpu")
    torch.manual_seed(3)
    for layer in model:
        luwu.fully_shard(layer)
    luwu.fully_shard(model)
    optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-3, update=update)
    for step in range(STEPS):
        x = torch.full((2, 96), 0.1 * (step + nic.rank + 1))
        model(x).square().mean().backward()
        optimizer.step()
    luwu.finish()
    return session


@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])
def test_weights_are_used_where_they_lie(has_switch: bool, update: str, tmp_path: Path) -> None:
    """Goal: a worker holds no weights of its own, and pulls each unit once a step, though it is
    freed between forward and backward; `at_step` it lets go of them before the node overwrites
    them."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(96, 96), nn.Linear(96, 8))

    def worker(nic: Nic) -> tuple[int, int]:
        session = train(nic, model(), update)
        return session.pulls.bytes_count.peak, nic.counters.pull_bytes

    with cluster_of(tmp_path, has_switch=has_switch) as cluster:
        results = cluster.run(worker)
    parameters = sum(parameter.numel() for parameter in model().parameters())
    for held_bytes, pulled_bytes in results:
        assert held_bytes == 0
        padding = 1.1
        assert STEPS * 4 * parameters <= pulled_bytes <= padding * (STEPS + 1) * 4 * parameters


class Clamped(nn.Linear):
    """Changes its weight in forward, which no module may do here."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.clamp_(-0.01, 0.01)
        return super().forward(x)


def test_a_weight_that_is_changed_in_place_is_noticed(tmp_path: Path) -> None:
    """Goal: the script reads an error, and neither dies of a signal nor changes what others see."""
    with (
        cluster_of(tmp_path, has_switch=False, world_size=1) as cluster,
        pytest.raises(luwu.LuwuError, match="unit 0: a weight was changed in place"),
    ):
        cluster.run(lambda nic: train(nic, nn.Sequential(Clamped(96, 96), nn.Linear(96, 8))))
