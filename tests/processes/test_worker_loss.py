"""Workers that are lost while a job runs, and that come back: `--on-worker-loss drop`."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from luwu.base.tree import parse_ranks
from tests import kill
from tests.processes.jobs import Outside
from tests.processes.sampling_train import check_counted

STEPS = 40
GATE = 20
"""The step before which all wait, so that who is back is back in time."""
DROP = ("--on-worker-loss", "drop", "--drop-after", "3s")


def steps_of(events: Path) -> list[dict[str, Any]]:
    """What the node said of each step it decided."""
    lines = map(json.loads, events.read_text().splitlines())
    return [line for line in lines if line["name"] == "node.step"]


@pytest.mark.faults(1)
@pytest.mark.faults(4)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="switch"),
        pytest.param(("--no-switch",), id="no switch", marks=pytest.mark.slow),
    ],
)
def test_the_others_go_on(tmp_path: Path, more: tuple[str, ...]) -> None:
    """I1, I6, I8. Goal: rank 1 is killed, left out, and rank 2, which is killed too and started
    again, is let in again; the record of each step says who made it, and the run ends well."""
    outside = Outside(tmp_path / "outside")
    flags = (*DROP, "--worker-restarts", "1", *more)
    script = (
        "-m", "tests.light_job", "--steps", str(STEPS), "--compute-ms", str(kill.COMPUTE_MS),
        "--gate", str(tmp_path / "go"), "--gate-step", str(GATE),
        "--again", str(tmp_path / "go-again"),
    )  # fmt: skip
    with kill.start(
        tmp_path, "run", steps=STEPS, restarts=0, outside=outside, more_flags=flags, workers=3,
        script=script,
    ) as cluster:  # fmt: skip
        kill.wait_for_step(cluster, 5)
        cluster.kill("worker", 2)
        cluster.wait_for_text("ranks 2 are lost", log="node")
        (tmp_path / "go-again").touch()
        cluster.wait_for_text("ranks 2 are back", log="node")
        second = cluster.kill("worker", 1)
        (tmp_path / "go").touch()
        assert cluster.wait() == 0, cluster.output
        assert f"worker 1 (pid {second}) was lost: signal {signal.SIGKILL.name}" in cluster.output
        assert "the others go on without it" in cluster.output
        kill.check_clean(cluster, outside)
        steps = steps_of(cluster.run_directory.events("node"))
        assert [step["step"] for step in steps] == list(range(STEPS))
        assert steps[0]["ranks"] == "0-2"
        assert steps[-1]["ranks"] == "0,2"


@pytest.mark.slow  # the same histories in threads: tests/checkpoint/test_elastic_sampler.py
@pytest.mark.feature("samples counted once, over any number of workers")
@pytest.mark.faults(1)
@pytest.mark.faults(4)
def test_samples_of_a_lost_worker_are_read_again(tmp_path: Path) -> None:
    """I1, I6, I8. Goal: rank 0 is killed, left out and back, and the decided steps of each epoch
    have each sample once."""
    outside = Outside(tmp_path / "outside")
    with kill.start(
        tmp_path, "run", steps=0, restarts=0, outside=outside, workers=2,
        more_flags=("--on-worker-loss", "drop", "--drop-after", "2s", "--worker-restarts", "1"),
        script=("-m", "tests.processes.sampling_train", str(tmp_path)),
    ) as cluster:  # fmt: skip
        cluster.wait_for_text("node.step step=5 ", log="node")
        cluster.kill("worker", 0)
        cluster.wait_for_text("ranks 0 are lost", log="node")
        cluster.wait_for_text(" ranks=1\n", log="node")  # a step of the other alone
        (tmp_path / "again").touch()
        cluster.wait_for_text("ranks 0 are back", log="node")
        (tmp_path / "go").touch()
        assert cluster.wait() == 0, cluster.output
        kill.check_clean(cluster, outside)
        steps = steps_of(cluster.run_directory.events("node"))
    ranks = [parse_ranks(step["ranks"], "ranks") for step in steps]
    assert (1,) in ranks
    assert ranks[-1] == (0, 1)
    check_counted(tmp_path, ranks)
