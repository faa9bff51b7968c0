"""Features of a training script on a GPU: what they compute there is what they compute on a CPU.

Products are in float32, so that devices differ by rounding alone. A second run on the GPU, with
other chunks, has the same bits.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import luwu
from tests.helpers.real_training import in_cluster, seeded, sharded
from tests.helpers.small_models import Block, batch
from tests.optim.test_muon import groups_of
from tests.optim.test_several_optimizers import Critic

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
STEPS = 6
ROUNDING = 1e-4
"""Relative: sums of another order, over a few steps."""
Job = Callable[[], list[float]]


class Forgetful(nn.Module):
    """Blocks that are computed again in the backward, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(
                lambda x, b=block: nn.functional.dropout(b(x), 0.2), x, use_reentrant=False
            )
        return x


def data(step: int) -> Tensor:
    return batch(step, 0, 0).to(luwu.device())


def train(model: Any, optimizer: Any, steps: int = STEPS) -> list[float]:
    losses = []
    for step in range(steps):
        loss = model(data(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def muon() -> list[float]:
    model = sharded()
    return train(model, luwu.optim.Muon(groups_of(model), lr=0.02))


def hooks() -> list[float]:
    model = sharded()
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad * 0.5)
        parameter.register_post_accumulate_grad_hook(lambda p: p.grad.clamp_(-1e-3, 1e-3))
    return train(model, luwu.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def average() -> list[float]:
    model = sharded()
    losses = train(model, luwu.optim.AdamW(model.parameters(), lr=1e-2, average=luwu.ema(0.9)))
    kept = luwu.get_model_state_dict(model, average=True)
    weights = luwu.get_model_state_dict(model)
    assert any(not torch.equal(kept[name], weights[name]) for name in kept)
    return [*losses, *(float(each.float().norm()) for each in kept.values())]


def two_models() -> list[float]:
    actor, critic = sharded(), sharded(Critic, 8)
    groups = [{"params": actor.parameters()}, {"params": critic.parameters(), "lr": 2e-2}]
    optimizer = luwu.optim.AdamW(groups, lr=1e-2)
    losses = []
    for step in range(STEPS):
        for model, frozen in ((critic, actor), (actor, critic)):
            frozen.requires_grad_(False)
            loss = critic(actor(data(step))).square().mean() + model(data(step)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            frozen.requires_grad_(True)
            losses.append(loss.item())
    return losses


def accumulated() -> list[float]:
    model = sharded()
    optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, max_grad_norm=0.5)
    losses = []
    for step in range(STEPS):
        for part in range(3):
            model.set_requires_gradient_sync(part == 2)
            loss = model(data(3 * step + part)).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("job", [muon, hooks, average, two_models, accumulated])
def test_a_gpu_trains_as_a_cpu(job: Job, tmp_path: Path) -> None:
    """I3, I4. Goal: losses of a GPU are those of a CPU to rounding, and the weights have the same
    bits whatever the chunks."""
    on_cpu, on_gpu, again = (
        in_cluster(tmp_path / f"{n}", lambda _: job(), device=device, chunk_bytes=kib * 1024)
        for n, (device, kib) in enumerate((("cpu", 64), (DEVICE, 64), (DEVICE, 1024)))
    )
    assert on_gpu.results[0] == pytest.approx(on_cpu.results[0], rel=ROUNDING)
    assert again == on_gpu


def test_blocks_computed_again_draw_the_same_dropout(tmp_path: Path) -> None:
    """I4. Goal: the losses of plain torch on the same GPU, with the same random numbers."""

    def train_with(model: Any, optimizer: Any) -> list[float]:
        torch.manual_seed(3)
        return train(model, optimizer)

    def ours(_: int) -> list[float]:
        model = sharded(Forgetful)
        return train_with(model, luwu.optim.AdamW(model.parameters(), lr=1e-2))

    def plain(_: int) -> list[float]:
        model = seeded(Forgetful).to(DEVICE)
        return train_with(model, torch.optim.AdamW(model.parameters(), lr=1e-2))

    def both(rank: int) -> list[list[float]]:
        return [plain(rank), ours(rank)]

    ((expected, found),) = in_cluster(tmp_path, both, device=DEVICE).results
    assert found == pytest.approx(expected, rel=ROUNDING)


def test_activations_wait_on_the_host(tmp_path: Path) -> None:
    """I4. Goal: with all that is saved for backward in the host's memory, the bits without."""

    def work(saving: contextlib.AbstractContextManager[None], _: int) -> list[float]:
        torch.manual_seed(3)
        model = sharded(Forgetful)
        with saving:
            return train(model, luwu.optim.AdamW(model.parameters(), lr=1e-2))

    plain, found = (
        in_cluster(tmp_path / name, functools.partial(work, saving), device=DEVICE)
        for name, saving in (
            ("device", contextlib.nullcontext()),
            ("host", torch.autograd.graph.save_on_cpu(pin_memory=True)),
        )
    )
    assert found == plain


@pytest.mark.skipif(
    importlib.util.find_spec("lightning_fabric") is None, reason="lightning-fabric is not installed"
)
def test_fabric_over_workers_that_share_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4. Goal: the script of docs/fabric.md runs, with collectives of gloo."""
    from tests.integrations.test_fabric import test_fabric_page_with_two_workers as run_page

    run_page(tmp_path, monkeypatch)


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
@pytest.mark.parametrize("backend", ["gloo", None])
def test_trainer_over_workers_that_share_a_gpu(
    backend: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4. Goal: with ddp_backend="gloo" the script of docs/huggingface.md runs; without it the
    message says so."""
    from tests.integrations import test_transformers_page as page

    if backend is None:
        with pytest.raises(AssertionError, match=r'pass TrainingArguments\(ddp_backend="gloo"\)'):
            page.test_transformers_trainer_with_two_workers(tmp_path, monkeypatch)
        return
    line = f'+     ddp_backend="{backend}",'
    blocks = [
        (how, kind, re.sub(r'(?<="output",\n)', f"{line}\n", text))
        for how, kind, text in page.BLOCKS
    ]
    monkeypatch.setattr(page, "BLOCKS", blocks)
    page.test_transformers_trainer_with_two_workers(tmp_path, monkeypatch)
