"""`luwu chaos` on real runs: what it does, what it sees, and how it says it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from luwu.testing.cluster import Cluster, clean_environ
from tests.kill import start
from tests.processes.jobs import ON_THE_CPU, Outside, light_digest
from tests.schemas import check

STEPS = 60
LIMIT_S = 180
LIGHT = ("-m", "tests.light_job", "--steps", "6")


@dataclass(frozen=True)
class Ended:
    """A `luwu chaos` that is over."""

    code: int
    output: str
    document: dict[str, Any] | None
    digest: str | None


def chaos(
    directory: Path, flags: Sequence[str], name: str, *, workers: int = 1, steps: int = STEPS
) -> Ended:
    """`luwu chaos FLAGS run ...` on the small job; nothing may be left of it (I8)."""
    outside = Outside(directory / f"{name}.tmp")
    run = directory / name
    command = [
        sys.executable, "-m", "luwu", "chaos", *flags, "run", "--run-dir", str(run),
        "--workers", str(workers), "--durability", "process",
        "--state", str(directory / f"{name}.state"), "-m", "tests.light_job",
        "--steps", str(steps), "--compute-ms", "30",
    ]  # fmt: skip
    environ = {**clean_environ(), **outside.environ, **ON_THE_CPU}
    done = subprocess.run(
        command, cwd=directory, env=environ, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert outside.leftovers() == []
    if "--json" in flags:
        check("chaos", json.loads(done.stdout))
    records = [run / "chaos.json", run / "results" / "node.json"]
    told, node = (json.loads(file.read_text()) if file.exists() else None for file in records)
    return Ended(
        done.returncode, done.stdout + done.stderr, told, (node or {}).get("weights_digest")
    )


@pytest.mark.feature("luwu chaos")
def test_a_run_survives_what_it_says_it_does(tmp_path: Path) -> None:
    """I1, I2, I3. Goal: kills of node and switch and a stalled worker cost no step and no bit."""
    plan = tmp_path / "plan.toml"
    plan.write_text(
        "[[fault]]\nkill = 'node'\nafter_steps = 3\nafter = '20ms'\n"
        "[[fault]]\nstall = 'worker-1'\nafter_steps = 12\nfor = '300ms'\n"
        "[[fault]]\nkill = 'switch'\nafter_steps = 20\nafter = '50ms'\n"
    )
    quiet = chaos(tmp_path, ["--kill", "node", "--plan-only"], "unused")
    assert (quiet.code, quiet.document) == (0, None)

    ended = chaos(tmp_path, ["--plan", str(plan)], "run", workers=2)

    assert ended.code == 0, ended.output
    assert "3 faults, 0 violations" in ended.output.splitlines()
    assert ended.document is not None
    faults = ended.document["faults"]
    assert [each["process"] for each in faults] == ["node", "worker-1", "switch"]
    assert all(each["resumed_s"] > 0 for each in faults), ended.output
    assert ended.digest == light_digest(STEPS)


def test_an_end_that_the_configuration_explains(tmp_path: Path) -> None:
    """Goal: without --worker-restarts a killed worker ends the run, and that is no violation;
    told to expect otherwise, it is one."""
    flags = ["--kill", "worker", "--count", "1", "--every-steps", "4"]
    ended = chaos(tmp_path, flags, "expected")
    assert ended.code == 0, ended.output
    assert "1 faults, 0 violations" in ended.output.splitlines()
    assert "the run ended with exit code 4, as expected" in ended.output
    assert "E401: a worker was lost; more: luwu explain E401" in ended.output

    ended = chaos(tmp_path, [*flags, "--expect", "on", "--json"], "not-expected")
    assert ended.code == 1
    assert ended.document is not None
    assert (len(ended.document["faults"]), len(ended.document["violations"])) == (1, 1)
    assert "the run ended with exit code 4" in ended.document["violations"][0]


def test_faults_that_come_too_late_are_told(tmp_path: Path) -> None:
    """I6. Goal: a campaign whose faults never happened is no success."""
    plan = tmp_path / "plan.toml"
    plan.write_text("[[fault]]\nkill = 'node'\nafter_steps = 10000\n")
    ended = chaos(tmp_path, ["--plan", str(plan)], "run", steps=2)
    assert ended.code == 1
    assert "the run was over before 1 of 1 faults" in ended.output
    assert "0 faults, 0 violations" in ended.output.splitlines()


def test_a_run_that_goes_on_already(tmp_path: Path) -> None:
    """Goal: found by its directory, disturbed, and left running; one that is over is refused."""
    outside = Outside(tmp_path / "run.tmp")
    with start(tmp_path, "run", steps=10**6, restarts=2, outside=outside, workers=1) as cluster:
        cluster.wait_for("worker")
        command = [
            sys.executable, "-m", "luwu", "chaos", "--run-dir", str(cluster.run_directory.path),
            "--kill", "switch", "--count", "2", "--every-steps", "6",
        ]  # fmt: skip
        done = subprocess.run(
            command, env=clean_environ(os.environ), capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr + cluster.output
        assert done.stdout.splitlines()[-1] == "2 faults, 0 violations"
        cluster.signal(signal.SIGINT)
        assert cluster.wait() == 130, cluster.output
    assert outside.leftovers() == []
    done = subprocess.run(
        command, env=clean_environ(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is not running: stopped" in done.stderr


def test_failpoints_of_switch_and_worker(tmp_path: Path) -> None:
    """I1, I3. Goal: a switch killed with all gradients of an extent in its hands goes on, once; a
    worker that fails at a place ends the run, and says at which."""
    outside = Outside(tmp_path / "switch.tmp")
    with Cluster.run(
        tmp_path, *LIGHT, name="switch",
        flags=["--workers", "2", "--restarts", "1", "--state", str(tmp_path / "state")],
        environ={**outside.environ, "LUWU_FAILPOINTS": "switch.before_sum=kill@5"},
    ) as cluster:  # fmt: skip
        assert cluster.wait() == 0, cluster.output
        assert "ended with signal SIGKILL; started again" in cluster.output
        assert cluster.results()["node.json"]["steps"] == 6
    with Cluster.run(
        tmp_path, *LIGHT, name="worker",
        flags=["--workers", "1", "--state", str(tmp_path / "other")],
        environ={**outside.environ, "LUWU_FAILPOINTS": "worker.before_push=raise@2"},
    ) as cluster:  # fmt: skip
        assert cluster.wait() == 4, cluster.output
        assert "failpoint worker.before_push, pass 2" in cluster.output
    assert outside.leftovers() == []
