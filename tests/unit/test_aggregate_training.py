"""Training by integers, in process: one digest whatever the way, and losses beside float32."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luwu.base.errors import ConfigError
from luwu.launch.local_cluster import LocalCluster
from switch_emu.switch.core.actions import SwitchLimits
from tests.unit import test_digests_in_process as training
from tests.unit.local_job import Job as LocalJob

LOSS_RATIO_MAX = 1e-5
"""How far a step's loss may be from float32's, as a share of it. The bounds of single sums are
about 1e-8 of a block's largest gradient (`luwu.aggregate`); AdamW divides by the gradient's size,
so elements much smaller than that come to move otherwise. Measured: 2e-7."""

INTEGERS = "shared-exponent"

WAYS: list[dict[str, Any]] = [
    {},
    {"has_switch": False, "transport": "shm", "chunk_bytes": 64 * 1024},
    {"transport": "tcp", "switch_limits": SwitchLimits(slot_bytes_max=100_000)},
    {"memory_budget_bytes": 20 * 16 * 1024, "state": "state", "transport": "ipc"},
]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "STEPS", 8)


def run(directory: Path, name: str, **changes: Any) -> tuple[str, list[float]]:
    """Digest of the weights, and the losses of rank 0."""
    if "state" in changes:
        changes["state"] = directory / "state"
    values = {"memory_budget_bytes": 400 * 2**20, "state": None, **changes}
    summary = directory / "summary.json"
    with LocalCluster(world_size=2, summary=summary, aggregate=name, **values) as cluster:
        losses = cluster.run(training.train)
        return cluster.weights_digest(), losses[0]


@functools.cache
def plain_run(name: str) -> tuple[str, list[float]]:
    """As `run`, by the first way."""
    with tempfile.TemporaryDirectory() as directory:
        return run(Path(directory), name)


@pytest.mark.parametrize("way", WAYS[1:], ids=str)
def test_digest_is_one(way: dict[str, Any], tmp_path: Path) -> None:
    """I3. Goal: integers give the same bits with a switch or without, with slots or raw, spilled
    or not, by any transport and chunk."""
    assert run(tmp_path, INTEGERS, **way)[0] == plain_run(INTEGERS)[0]


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
