"""Training by integers, in process: one digest whatever the way, and losses beside float32."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luwu.testing.local import LocalCluster
from switch_emu.switch.actions import SwitchLimits
from tests.unit.test_digests_in_process import train

LOSS_RATIO_MAX = 1e-3
"""How far a step's loss may be from float32's, as a share of it. Bounds of single sums are a
thousand times smaller (`luwu.aggregate`); the steps of AdamW make small gradients large."""

SPECS = ("shared-exponent", "fixed-scale:16777216.0", "fixed-scale:300000000.0")
"""The last does not fit the larger gradients of this model: their chunks are sent again."""

WAYS: list[dict[str, Any]] = [
    {},
    {"has_switch": False},
    {"transport": "shm", "chunk_bytes": 64 * 1024},
    {"transport": "tcp", "chunk_bytes": 4 * 1024 * 1024},
    {"switch_limits": SwitchLimits(slot_bytes_max=100_000)},
    {"memory_budget_bytes": 20 * 16 * 1024, "state": "state"},
]


def run(directory: Path, spec: str, **changes: Any) -> tuple[str, list[float]]:
    """Digest of the weights, and the losses of rank 0."""
    if "state" in changes:
        changes["state"] = directory / "state"
    values = {"memory_budget_bytes": 400 * 2**20, "state": None, **changes}
    summary = directory / "summary.json"
    with LocalCluster(world_size=2, summary=summary, aggregate=spec, **values) as cluster:
        losses = cluster.run(train)
        return cluster.weights_digest(), losses[0]


@functools.cache
def seen(spec: str) -> set[str]:
    """Digests seen so far in this process: there must be one."""
    return set()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_digest_is_one(spec: str, way: dict[str, Any], tmp_path: Path) -> None:
    """I3. Goal: integers give the same bits with a switch or without, with slots or raw, by any
    transport and chunk. Method: compare with all ways run before in this process."""
    digest, _ = run(tmp_path, spec, **way)
    seen(spec).add(digest)
    assert len(seen(spec)) == 1


@functools.cache
def float_losses() -> list[float]:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        return run(Path(directory), "float32")[1]


@pytest.mark.parametrize("spec", SPECS)
def test_losses_follow_float32(spec: str, tmp_path: Path) -> None:
    """Goal: a model trained by integers learns as one trained by float32.
    Method: 20 steps of a small GPT; every step's loss beside float32's."""
    _, found = run(tmp_path, spec)
    ratios = np.abs(np.array(found) / np.array(float_losses()) - 1)
    assert found[-1] < found[0]
    assert ratios.max() < LOSS_RATIO_MAX
