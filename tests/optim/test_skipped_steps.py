"""Steps that are skipped because a gradient is not finite are reported, with their unit."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import nn

import luwu
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.progress import Skips
from tests.helpers.real_training import in_cluster, seeded


class Overflows(nn.Linear):
    """Its backward has a gradient that is not finite, from the step on that is set."""

    spoils = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super().forward(x)
        if self.spoils:
            y.register_hook(lambda gradient: gradient * float("inf"))
        return y


@pytest.mark.feature("a gradient that is not finite")
@pytest.mark.parametrize("optimizer_nodes", [1, 2])
def test_the_first_and_every_tenth_are_reported(optimizer_nodes: int, tmp_path: Path) -> None:
    """I6. Goal: a training that makes no progress is not silent, and names the unit where backward
    went wrong, not those behind it; a step that the script leaves out is not reported.
    Method: the node prints into the log of a run, which the launcher reads."""
    run = RunDirectory(tmp_path / "run")
    log = run.log("node")
    log.parent.mkdir(parents=True)
    printed = io.StringIO()

    def work(rank: int) -> None:
        model = seeded(lambda: nn.Sequential(nn.Linear(8, 8), Overflows(8, 8), nn.Linear(8, 8)))
        luwu.fully_shard_each(model, nn.Linear)
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        for step in range(15):
            Overflows.spoils = step >= 3
            model(torch.ones(1, 8)).sum().backward()
            result = optimizer.skip_step() if step == 1 else optimizer.step()
            assert result.applied == (step in {0, 2})
            optimizer.zero_grad()

    in_cluster(tmp_path, work, printed=printed, optimizer_nodes=optimizer_nodes)
    log.write_text(printed.getvalue(), encoding="utf-8")
    skips = Skips(run)
    news = skips.news()
    assert [text.split(" was ")[0] for text in news] == ["step 3", "step 13"]  # once, of all nodes
    if optimizer_nodes == 1:
        assert "the gradient of unit 1 is not finite (1 skipped so far)" in news[0]
    assert skips.news() == []
