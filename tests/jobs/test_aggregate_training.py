"""Training by integers, in process: losses beside float32, and states that keep their form."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import luwu
from luwu.base.errors import ConfigError
from luwu.launch.local_cluster import LocalCluster
from luwu.nic.shell import Nic
from tests.helpers.local_job import Job as LocalJob
from workers.data import Batches
from workers.gpt import GPT, GPTConfig, init_weights

STEPS = 8
CONFIG = GPTConfig(layers=2, width=64, heads=2, context=16)
TOKENS = np.random.default_rng(1).integers(0, 256, 20_000, dtype=np.uint16)

LOSS_RATIO_MAX = 1e-5
"""How far a step's loss may be from float32's, as a share of it. The bounds of single sums are
about 1e-8 of a block's largest gradient (`luwu.aggregate`); AdamW divides by the gradient's size,
so elements much smaller than that come to move otherwise. Measured: 2e-7."""

INTEGERS = "shared-exponent"


def train(nic: Nic) -> list[float]:
    """What a training script does, with a NIC of the test's own; the losses."""
    torch.set_num_threads(1)
    luwu.init(nic=nic, device="cpu")
    with torch.device("meta"):
        model = GPT(CONFIG)
    for block in model.blocks:
        luwu.fully_shard(block)
    luwu.fully_shard(model)
    luwu.init_weights(model, functools.partial(init_weights, seed=5))
    optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-3, update="streaming")
    batches = Batches(TOKENS, context=CONFIG.context, seed=5)
    losses = []
    for step in range(STEPS):
        x_BT, y_BT = batches.batch(step, rank=nic.rank, world_size=nic.world_size, per_rank=2)
        loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    luwu.finish()
    return losses


def run(directory: Path, name: str, **changes: Any) -> tuple[str, list[float]]:
    """Digest of the weights, and the losses of rank 0."""
    if "state" in changes:
        changes["state"] = directory / "state"
    values = {"memory_budget_bytes": 400 * 2**20, "state": None, **changes}
    summary = directory / "summary.json"
    with LocalCluster(world_size=2, summary=summary, aggregate=name, **values) as cluster:
        losses = cluster.run(train)
        return cluster.weights_digest(), losses[0]


@functools.cache
def plain_run(name: str) -> tuple[str, list[float]]:
    """As `run`, without a directory for the state."""
    with tempfile.TemporaryDirectory() as directory:
        return run(Path(directory), name)


def test_losses_follow_float32() -> None:
    """Goal: a model trained by integers learns as one trained by float32, to the bound stated.
    Method: every step's loss of a small GPT beside float32's; the weights differ, so it was not
    float32 that was compared."""
    digest, losses = plain_run(INTEGERS)
    float_digest, float_losses = plain_run("float32")
    assert losses[-1] < losses[0]
    assert np.abs(np.array(losses) / np.array(float_losses) - 1).max() < LOSS_RATIO_MAX
    assert digest != float_digest


def test_a_state_keeps_its_aggregator(tmp_path: Path) -> None:
    """Goal: a state that was made by integers is not gone on with in float32 by mistake; the
    refusal says what differs."""
    run(tmp_path, INTEGERS, state="state")
    with pytest.raises(ConfigError, match=r"agreement\.aggregate: .*\"shared-exponent"):
        run(tmp_path, "float32", state="state", resume=True)


def test_the_key_of_the_agreement_is_taken(tmp_path: Path) -> None:
    """Goal: a script cannot agree on something else under the aggregator's key."""
    job = LocalJob()
    with (
        LocalCluster(
            world_size=1, state=None, memory_budget_bytes=2**26, summary=tmp_path / "summary.json"
        ) as cluster,
        pytest.raises(ConfigError, match="call it otherwise in agree="),
    ):
        cluster.run(lambda nic: nic.join(job.description.aggregated_by("shared-exponent")))
