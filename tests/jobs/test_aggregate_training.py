"""Training by integers, in process: losses beside float32, and states that keep their form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import luwu
from luwu.base.errors import ConfigError
from luwu.launch.local_cluster import LocalCluster
from tests.helpers.local_job import Job as LocalJob
from tests.helpers.real_training import Trained, in_cluster
from tests.helpers.small_models import gpt_config, gpt_loss, make_gpt, shard_gpt

STEPS = 8

LOSS_RATIO_MAX = 1e-5
"""How far a step's loss may be from float32's, as a share of it. The bounds of single sums are
about 1e-8 of a block's largest gradient (`luwu.aggregate`); AdamW divides by the gradient's size,
so elements much smaller than that come to move otherwise. Measured: 2e-7."""

INTEGERS = "shared-exponent"


def run(directory: Path, name: str, **changes: Any) -> Trained:
    """Train a small GPT on one batch; the losses of each rank."""

    def work(rank: int) -> list[float]:
        model = make_gpt(gpt_config())
        shard_gpt(model)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-3, update="streaming")
        losses = []
        for _ in range(STEPS):
            loss = gpt_loss(model, 0, rank, 0)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return losses

    return in_cluster(directory, work, world_size=2, aggregate=name, **changes)


def test_losses_follow_float32(tmp_path: Path) -> None:
    """Goal: a model trained by integers learns as one trained by float32, to the bound stated.
    Method: every step's loss of a small GPT beside float32's; the weights differ, so it was not
    float32 that was compared."""
    found, expected = (run(tmp_path / name, name) for name in (INTEGERS, "float32"))
    losses, float_losses = np.array(found.results[0]), np.array(expected.results[0])
    assert losses[-1] < losses[0]
    assert np.abs(losses / float_losses - 1).max() < LOSS_RATIO_MAX
    assert found.digest != expected.digest


def test_a_state_keeps_its_aggregator(tmp_path: Path) -> None:
    """Goal: a state that was made by integers is not gone on with in float32 by mistake; the
    refusal says what differs."""
    run(tmp_path, INTEGERS, state=tmp_path / "state")
    with pytest.raises(ConfigError, match=r"agreement\.aggregate: .*\"shared-exponent"):
        run(tmp_path, "float32", state=tmp_path / "state", resume=True)


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
