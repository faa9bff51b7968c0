"""Workers that are lost while a job runs, and that come back: `--on-worker-loss drop`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests import kill
from tests.processes.jobs import Outside

STEPS = 60
GATES = (20, 40)
"""The steps before which all wait, so that who is back is back in time."""
DROP = ("--on-worker-loss", "drop", "--drop-after", "3s")


@pytest.mark.faults(1)
@pytest.mark.faults(3)
@pytest.mark.faults(4)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="switch"),
        pytest.param(("--no-switch",), id="no switch", marks=pytest.mark.slow),
    ],
)
def test_the_others_go_on(tmp_path: Path, more: tuple[str, ...]) -> None:
    """I1, I6, I8. Goal: rank 1 hangs, with a connection that looks well: it is named, left out, and
    let in again when it goes on. So is rank 2, which is killed and started again. Then rank 1 is
    killed and left out. The record of each step says who made it, and the run ends well."""
    outside, gate = Outside(tmp_path / "outside"), tmp_path / "go"
    flags = (*DROP, "--worker-restarts", "1", *more)
    script = (
        "-m", "tests.light_job", "--steps", str(STEPS), "--compute-ms", str(kill.COMPUTE_MS),
        "--gate", str(gate), "--gate-step", str(GATES[0]), "--again", str(tmp_path / "go-again"),
    )  # fmt: skip
    with kill.start(
        tmp_path, "run", steps=STEPS, restarts=0, outside=outside, more_flags=flags, workers=3,
        script=script,
    ) as cluster:  # fmt: skip
        kill.wait_for_step(cluster, 5)
        hangs = cluster.kill("worker", 1, signal.SIGSTOP)
        cluster.wait_for_text("switch.late", log="node" if more else "switch")
        cluster.wait_for_text("ranks 1 are lost", log="node")
        os.kill(hangs, signal.SIGCONT)
        cluster.wait_for_text("ranks 1 are back", log="node")
        gate.write_text(str(GATES[1]))
        cluster.kill("worker", 2)
        cluster.wait_for_text("ranks 2 are lost", log="node")
        (tmp_path / "go-again").touch()
        cluster.wait_for_text("ranks 2 are back", log="node")
        second = cluster.kill("worker", 1)
        gate.write_text("")
        assert cluster.wait() == 0, cluster.output
        assert f"worker 1 (pid {second}) was lost: signal {signal.SIGKILL.name}" in cluster.output
        assert "the others go on without it" in cluster.output
        kill.check_clean(cluster, outside)
        lines = map(json.loads, cluster.run_directory.events("node").read_text().splitlines())
        steps = [line for line in lines if line["name"] == "node.step"]
        assert [step["step"] for step in steps] == list(range(STEPS))
        assert steps[0]["ranks"] == "0-2"
        assert steps[-1]["ranks"] == "0,2"
