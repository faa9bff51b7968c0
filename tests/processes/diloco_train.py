"""A worker that trains a small model in rounds, and waits at a gate in the middle of one."""

from __future__ import annotations

from pathlib import Path

import torch

import luwu
from tests.helpers.real_training import seeded
from tests.light_job import wait_for

EVERY, STEPS, GATE_STEP = 4, 20, 10


def train(gate: Path | None = None) -> None:
    """Between luwu.init and luwu.finish. SGD has no state: a worker that comes back goes on as it
    would have."""
    model = seeded(lambda: torch.nn.Linear(128, 128), seed=1)  # ranks may be threads
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = luwu.DiLoCo(model, every=EVERY)
    rank = luwu.rank()
    for step in range(EVERY * outer.round, STEPS):
        if step == GATE_STEP and gate is not None:
            gate.with_name(f"here-{rank}").touch()
            wait_for(gate)
        x = torch.randn(8, 128, generator=torch.Generator().manual_seed(100 * step + rank))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outer.step()


if __name__ == "__main__":
    luwu.init()
    train(Path("gate").absolute())
    luwu.finish()
