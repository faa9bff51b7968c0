"""Every part of the emulated network at once, as real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kill import TREE, TREE_WORKERS
from tests.processes.jobs import SMALL, assert_accounted_for, compare

pytestmark = pytest.mark.timeout(400)  # eight processes on two processors, half of them with torch


@pytest.mark.slow  # simulated histories combine the same, in less time
@pytest.mark.feature("all of these at once")
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
        "--loss", "0.05", "--duplicate", "0.05", "--reorder", "4",
    )  # fmt: skip
    together = compare(tmp_path, *flags, *network, name="together").arm()
    assert together["weights_digest"] == plain["weights_digest"]
    assert together["loss"] == plain["loss"]
    assert together["aborts_count"] == 0
    assert len(together["disk_bytes_by_node"]) == 2
    assert {each["name"] for each in together["switches"]} == {"top", "left", "right"}
    assert_accounted_for(together["links"])
    assert sum(row["messages"]["dropped"] for row in together["links"]) > 0
