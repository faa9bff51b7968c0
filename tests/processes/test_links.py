"""The emulated network under the real commands: slower as a whole, and all its parts at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kill import TREE, TREE_WORKERS
from tests.processes.jobs import SMALL, assert_accounted_for, compare, plain_digest

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


@pytest.mark.slow  # simulated histories combine the same, in less time
@pytest.mark.feature("all of these at once")
@pytest.mark.timeout(400)  # eight processes on two processors, half of them with torch
def test_all_parts_together_change_no_bit_of_integers(tmp_path: Path) -> None:
    """I1, I3. Goal: a tree of three switches of four slots each, before two nodes, over links that
    lose, repeat and reorder, has the weights of one switch and one node with nothing between.
    Method: integers, whose sums depend on no tree; the report counts the messages of every link."""
    tree = tmp_path / "tree.toml"
    tree.write_text(TREE)
    flags = (
        "--workers", str(TREE_WORKERS), "--steps", "4", "--durability", "process", *SMALL,
        "--chunk", "16KiB", "--memory-budget", "64MiB", "--aggregate", "shared-exponent",
    )  # fmt: skip
    plain = compare(tmp_path, *flags, name="plain").arm()
    network = (
        "--tree", str(tree), "--optimizer-nodes", "2", "--fidelity", "protocol", "--slots", "4",
        "--link", "loss=0.05,duplicate=0.05,reorder=4",
    )  # fmt: skip
    together = compare(tmp_path, *flags, *network, name="together").arm()
    assert together["weights_digest"] == plain["weights_digest"]
    assert together["loss"] == plain["loss"]
    assert together["aborts_count"] == 0
    assert len(together["disk_bytes_by_node"]) == 2
    assert {each["name"] for each in together["switches"]} == {"top", "left", "right"}
    assert_accounted_for(together["links"])
    assert sum(row["messages"]["dropped"] for row in together["links"]) > 0
