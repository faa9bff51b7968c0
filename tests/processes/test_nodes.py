"""Two optimizer nodes as processes: the digest of plain torch, killed or not, lost and filled."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from luwu.commands.main import main
from luwu.testing.cluster import Cluster
from tests import kill
from tests.processes.jobs import Outside, exported, light_digest

STEPS = 12

pytestmark = pytest.mark.timeout(400)  # each run starts up to nine processes


def finished(cluster: Cluster, outside: Outside) -> dict[str, Any]:
    """What the nodes of a run came to that ended well and left nothing."""
    kill.finish(cluster, outside)
    found: dict[str, Any] = cluster.results()["node.json"]
    return found


def start(directory: Path, outside: Outside, *, restarts: int = 2, **more: Any) -> Cluster:
    """A run with two nodes that hold the same pages."""
    flags = ("--optimizer-nodes", "2", "--replicas", "2", "--chunk", "16KiB")
    return kill.start(
        directory, "run", steps=STEPS, restarts=restarts, outside=outside,
        more_flags=[*flags, "--memory-budget", "64MiB"], **more,
    )  # fmt: skip


@pytest.mark.feature("replicas")
def test_nodes_are_killed(tmp_path: Path) -> None:
    """I1, I2, I3, I8. Goal: with two nodes that hold the same pages, either of which is killed
    once, the digest is that of plain torch; so has an export, after one directory was lost and
    made again from the other. Method: kill -9 in the middle."""
    outside = Outside(tmp_path / "outside")
    with start(tmp_path, outside) as cluster:
        for step, role in ((2, "node-1"), (5, "node")):
            cluster.wait_for(role)
            kill.wait_for_step(cluster, step, limit_s=150)
            pid = cluster.kill(role)
            cluster.wait_for(role, but=pid)
        found = finished(cluster, outside)
    assert found["weights_digest"] == light_digest(STEPS)
    shutil.rmtree(tmp_path / "run.state" / "node-0")
    assert main(["refill", str(tmp_path / "run.state"), "--without", "0"]) == 0
    assert exported(tmp_path / "run.state") == (STEPS, light_digest(STEPS))


@pytest.mark.feature("a lost optimizer node")
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_node_is_lost_with_its_directory(number: int, tmp_path: Path) -> None:
    """I1, I2, I3, E4. Goal: the job goes on without it and ends with the digest of plain torch; the
    state says so, and is whole again after a refill. Method: kill -9, and delete its directory; no
    process is started in its place."""
    outside = Outside(tmp_path / "outside")
    role, directory = ("node", "node-1")[number], tmp_path / "run.state" / f"node-{number}"
    with start(tmp_path, outside, restarts=0) as cluster:
        cluster.wait_for(role)
        kill.wait_for_step(cluster, 3, limit_s=150)
        shutil.rmtree(directory)
        cluster.kill(role)
        found = finished(cluster, outside)
        said = cluster.output
    assert f"{role} is lost (signal SIGKILL); the run goes on without it" in said
    assert found["weights_digest"] == light_digest(STEPS)
    assert len(found["nodes"]) == 1
    assert main(["refill", str(tmp_path / "run.state")]) == 0
    assert main(["verify", "--full", str(tmp_path / "run.state")]) == 0
    shutil.rmtree(tmp_path / "run.state" / f"node-{1 - number}")
    assert main(["refill", str(tmp_path / "run.state"), "--without", str(1 - number)]) == 0
    assert exported(tmp_path / "run.state") == (STEPS, light_digest(STEPS))


@pytest.mark.feature("a lost optimizer node")
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_lost_node_is_filled_while_training_goes_on(number: int, tmp_path: Path) -> None:
    """I1, I2, I3, E8. Goal: a node that comes back empty has all pages by the end, with the digest
    of plain torch: the other's directory may be lost then. Method: kill -9, and delete its
    directory; workers wait at a gate until its successor is there."""
    outside, state, gate = Outside(tmp_path / "outside"), tmp_path / "run.state", tmp_path / "gate"
    steps, role = 40, ("node", "node-1")[number]
    script = (
        "-m", "tests.light_job", "--steps", str(steps), "--compute-ms", "5",
        "--gate", str(gate), "--gate-step", "6",
    )  # fmt: skip
    with start(tmp_path, outside, script=script) as cluster:
        kill.wait_for_step(cluster, 5, limit_s=150)
        shutil.rmtree(state / f"node-{number}")
        pid = cluster.kill(role)
        cluster.wait_for(role, but=pid)
        cluster.wait_for_text("switch.returned", log="switch", limit_s=150)
        gate.touch()
        found = finished(cluster, outside)
        cluster.wait_for_text("switch.filled", log="switch")
    assert found["weights_digest"] == light_digest(steps)
    assert len(found["nodes"]) == 2
    assert main(["verify", "--full", str(state)]) == 0
    shutil.rmtree(state / f"node-{1 - number}")
    assert main(["refill", str(state), "--without", str(1 - number)]) == 0
    assert exported(state) == (steps, light_digest(steps))


@pytest.mark.feature("lost optimizer nodes that held the last steps")
def test_all_nodes_are_lost_with_their_directories(tmp_path: Path) -> None:
    """E6. Goal: the run ends with E511: a snapshot helps, and not the same command again. Method:
    kill -9 of both at a gate, and both directories deleted."""
    outside, state, gate = Outside(tmp_path / "outside"), tmp_path / "run.state", tmp_path / "gate"
    script = ("-m", "tests.light_job", "--steps", "4", "--gate", str(gate))
    with start(tmp_path, outside, workers=1, script=script) as cluster:
        kill.wait_for_step(cluster, 2, limit_s=150)
        for number, role in enumerate(("node", "node-1")):
            shutil.rmtree(state / f"node-{number}", ignore_errors=True)  # before it starts again
            cluster.kill(role)
        gate.touch()
        assert cluster.wait(150) == 5
        assert "all copies of some pages are lost" in cluster.output
        assert "E511" in cluster.output
