"""Libraries that move or wrap what they train: refused, with what works instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import luwu


@pytest.fixture
def trained() -> Iterator[tuple[torch.nn.Module, torch.optim.Optimizer]]:
    luwu.init_local(memory_budget="64MiB")
    model = torch.nn.Linear(4, 2)
    luwu.fully_shard(model)
    yield model, luwu.optim.SGD(model.parameters(), lr=0.1)
    luwu.finish()


@pytest.mark.feature("Accelerate: prepare(model)")
def test_accelerate_prepares_the_data_alone(
    trained: tuple[torch.nn.Module, torch.optim.Optimizer],
) -> None:
    """Goal: the remedy that a model which is moved or wrapped names: loaders are prepared, the
    backward is Accelerate's, the model and the optimizer are ours."""
    accelerate = pytest.importorskip("accelerate")
    model, optimizer = trained
    accelerator = accelerate.Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=2))
    for (x,) in loader:
        accelerator.backward(model(x).sum())
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.next_step == 2  # type: ignore[attr-defined]


@pytest.mark.feature("Lightning: Trainer.fit")
def test_what_lightning_does_to_a_model_names_the_remedy(
    trained: tuple[torch.nn.Module, torch.optim.Optimizer], tmp_path: Path
) -> None:
    """Goal: its strategies move the model, or wrap it in DistributedDataParallel: each says what to
    do instead. (Lightning itself is not installed here.)"""
    model, _ = trained
    with pytest.raises(luwu.ConfigError, match=r"give accelerator\.prepare the data loaders alone"):
        model.to(torch.float64)
    dist.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with pytest.raises(luwu.ConfigError, match="Lightning's Trainer moves and wraps"):
            torch.nn.parallel.DistributedDataParallel(model)
    finally:
        dist.destroy_process_group()
