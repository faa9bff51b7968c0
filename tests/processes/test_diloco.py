"""luwu.DiLoCo in real processes: a worker that is lost costs what it had not sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.testing.cluster import Cluster
from tests.helpers.real_training import in_cluster
from tests.processes.diloco_train import EVERY, STEPS, train


@pytest.mark.timeout(300)
@pytest.mark.feature("DiLoCo")
@pytest.mark.parametrize(
    "lost",
    [
        "worker",
        pytest.param("switch", marks=pytest.mark.slow),
        pytest.param("node", marks=pytest.mark.slow),
    ],
)
def test_a_lost_process_costs_what_was_not_sent(lost: str, tmp_path: Path) -> None:
    """I1, I2, I3, I8. Goal: the digest of a quiet run, whoever is killed in the middle of a round;
    a worker begins its round again. Method: SIGKILL while all wait at a gate."""
    quiet = in_cluster(tmp_path / "quiet", lambda _: train(), world_size=2)
    flags = (
        "--workers", "2", "--chunk", "16KiB", "--durability", "process", "--restarts", "2",
        "--on-worker-loss", "wait", "--worker-restarts", "1",
    )  # fmt: skip
    here = [tmp_path / "here-0", tmp_path / "here-1"]
    with Cluster.run(tmp_path, "-m", "tests.processes.diloco_train", flags=flags) as cluster:
        cluster.until(lambda: all(file.exists() for file in here), "the gate", limit_s=120)
        rank = 1 if lost == "worker" else 0
        pid = cluster.kill(lost, rank)
        cluster.wait_for(lost, rank, but=pid)
        (tmp_path / "gate").touch()
        assert cluster.wait(120) == 0, cluster.told
        found = cluster.results()["node.json"]
    assert found["steps"] == STEPS // EVERY
    assert found["weights_digest"] == quiet.digest
