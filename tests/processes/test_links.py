"""A slower cluster under the real commands: emulated links and disk, compute that takes longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.jobs import compare, plain_digest

LAYERS, STEPS = 6, 16
SIZES = ("--layers", str(LAYERS), "--width", "64", "--context", "16", "--batch", "2")


@pytest.mark.slow  # 16 steps of 0.7 s; what may overlap, and the factor, are tested in units
@pytest.mark.feature("emulated links")
@pytest.mark.feature("slowing down a whole cluster")
@pytest.mark.usefixtures("on_the_cpu")
def test_dilation_slows_all_and_the_exchange_hides_behind_compute(tmp_path: Path) -> None:
    """I3. Goal: the keys reach whoever slows down: dilated by 10, a step takes at least the dilated
    compute of its units, forward and backward, and the digest is that of plain torch. Most pages
    are updated before the last push of their step, and most weights are there before they are used.
    Method: ratios that come from spans. The best one can do with 7 units: the last two pages (5/7
    early) and the root's pull (12/13) cannot hide, nor can the pulls of step 0, whose order
    nobody knows (15/16)."""
    slower = ("--compute-ms", "5", "--link", "10gbit", "--disk-rate", "2GB/s", "--dilation", "10")
    arm = compare(tmp_path, "--workers", "1", "--steps", str(STEPS), *SIZES, *slower).arm()
    assert min(arm["step_seconds"]) >= 2 * (LAYERS + 1) * 0.050
    assert arm["overlap"]["pages_updated_before_last_push_ratio"] >= 0.5
    assert arm["overlap"]["pull_before_use_ratio"] >= 0.8
    assert arm["weights_digest"] == plain_digest(STEPS, workers=1, sizes=SIZES)
    assert {row["label"] for row in arm["links"]} == {"emulated"}
