"""What is attached late goes with a step as the next training begins, whatever runs between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import luwu
from tests.unit.real_training import digest_of, in_cluster, seeded
from tests.unit.small_models import Block
from tests.unit.test_attached import SCHEDULERS
from tests.unit.training_harness import one_thread  # noqa: F401 - for every test here

KINDS = ("train", "train", "schedule", "schedule", "evaluate", "save", "wait", "draw")


class Batches:
    """A cursor over the data, which is drawn from before the next forward."""

    def __init__(self) -> None:
        self.position = {"index": 0}

    def draw(self) -> torch.Tensor:
        self.position["index"] += 1
        return torch.full((8, 64), 1.0 + self.position["index"])


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    return loss


def play(
    model: nn.Module, optimizer: Any, scheduler: Any, batches: Batches, events: Sequence[str],
    seen: list[float],
) -> None:  # fmt: skip
    """The events of a script; with a luwu model, or torch's. The rates of all steps to `seen`."""
    is_torch = isinstance(optimizer, torch.optim.SGD) and not hasattr(optimizer, "next_step")
    drawn, result = None, None
    for event in events:
        if event == "train":
            x, drawn = batches.draw() if drawn is None else drawn, None
            loss_of(model, x).backward()
            seen.append(float(optimizer.param_groups[0]["lr"]))
            result = optimizer.step()
            optimizer.zero_grad()
        elif event == "draw":
            drawn = batches.draw() if drawn is None else drawn
        elif event == "schedule":
            is_plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
            scheduler.step(*([1.0] if is_plateau else []))
        elif event == "evaluate":
            with torch.no_grad():
                model(torch.ones(8, 64))
        elif not is_torch and event == "save":
            luwu.get_model_state_dict(model)
        elif not is_torch and event == "wait" and result is not None:
            result.wait()


@pytest.mark.feature("learning rate schedulers")
@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_any_order_of_a_loop_resumes_as_torch_does(name: str, tmp_path: Path) -> None:
    """I4. Goal: rates and weights over two stops are those of a script of plain torch that saves
    model, optimizer, scheduler and position at the same points.
    Method: random orders of train, schedule, evaluate, save, wait, and draw a batch."""
    chosen = random.Random(f"order of {name}")
    events = ["train", *chosen.choices(KINDS, k=14)]
    cuts = sorted(chosen.sample(range(1, 15), 2))

    def part(events: Sequence[str]) -> Any:
        def work(rank: int) -> list[float]:
            model = seeded(lambda: nn.Sequential(Block()))
            luwu.fully_shard(model)
            optimizer = luwu.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
            scheduler, batches, seen = SCHEDULERS[name](optimizer), Batches(), []
            luwu.attach("scheduler", scheduler)
            luwu.attach("position", batches.position)
            play(model, optimizer, scheduler, batches, events, seen)
            return seen

        return work

    found: list[float] = []
    digest = ""
    parts = [events[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
    for number, each in enumerate(parts):
        done = in_cluster(
            tmp_path, part(each), world_size=2, state=tmp_path / "state", resume=number > 0
        )
        assert done.results[0] == done.results[1]
        found, digest = found + done.results[0], done.digest
    model = seeded(lambda: nn.Sequential(Block()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, fused=True)
    scheduler, batches, expected = SCHEDULERS[name](optimizer), Batches(), list[float]()
    for each in parts:  # a batch that is drawn and not used is drawn again
        used = batches.position["index"]
        play(model, optimizer, scheduler, batches, each, expected)
        batches.position["index"] = used + each.count("train")
    assert found == expected, f"{parts}"
    assert digest == digest_of(dict(model.named_parameters())), f"{parts}"
