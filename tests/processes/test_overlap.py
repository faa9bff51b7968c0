"""The exchange hides behind the compute: pages are updated, and weights fetched, in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.jobs import compare

LAYERS, STEPS = 6, 16


@pytest.mark.slow  # 16 steps of 0.7 s; what may overlap is tested in units
def test_updates_and_pulls_hide_behind_compute(tmp_path: Path) -> None:
    """Goal: with 50 ms of compute a unit, most pages are updated before the last push of their
    step, and most weights are there before they are needed.
    Method: ratios that come from spans. The best one can do with 7 units: the last two pages (5/7
    early) and the root's pull (12/13) cannot hide, nor can the pulls of step 0, whose order
    nobody knows (15/16)."""
    flags = ["--layers", str(LAYERS), "--width", "64", "--context", "16", "--batch", "2"]
    done = compare(tmp_path, "--workers", "1", "--compute-ms", "50", "--steps", str(STEPS), *flags)
    arm = done.arm()
    assert min(arm["step_seconds"]) >= 2 * (LAYERS + 1) * 0.050
    assert arm["overlap"]["pages_updated_before_last_push_ratio"] >= 0.5
    assert arm["overlap"]["pull_before_use_ratio"] >= 0.8
