"""Processes of a run are killed: it goes on, or ends and says why, and leaves nothing behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from luwu.testing.cluster import Cluster
from tests import kill, soak, soak_goodput
from tests.processes.jobs import Outside


@pytest.mark.faults(7)
@pytest.mark.faults(9)
@pytest.mark.parametrize(
    ("role", "transport"),
    [
        pytest.param("node", "shm", marks=pytest.mark.slow),
        ("node", "tcp"),
        pytest.param("switch", "shm", marks=pytest.mark.slow),
        ("worker", "shm"),
        pytest.param("worker", "tcp", marks=pytest.mark.slow),
        pytest.param("switch", "ipc", marks=pytest.mark.slow),
    ],
)
def test_run_goes_on(role: str, transport: str, capfd: pytest.CaptureFixture[str]) -> None:
    """I1, I2, I3, I8. Goal: one digest, killed or not. Method: two kills, the second (with this
    seed) while the process is still starting."""
    assert [moment.step is None for moment in kill.draw_moments(7, 2)] == [False, True]
    code = kill.main(["--role", role, "--count", "2", "--seed", "7", "--transport", transport])
    assert code == 0, capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("role", "transport"), [("switch-top", "auto"), ("switch-left", "tcp")])
def test_a_tree_goes_on(role: str, transport: str, capfd: pytest.CaptureFixture[str]) -> None:
    """I1, I2, I3, I8. Goal: the root, or a leaf between shared memory and tcp, is killed in the
    middle of a run, and the digest is that of plain torch."""
    code = kill.main(["--role", role, "--count", "1", "--seed", "3", "--transport", transport])
    assert code == 0, capfd.readouterr().out


def test_run_ends_with_its_worker(capfd: pytest.CaptureFixture[str]) -> None:
    """I6, I8. Goal: within seconds, with exit code 4 and the worker and signal in words."""
    code = kill.main(["--role", "worker-stop", "--count", "1", "--seed", "0"])
    assert code == 0, capfd.readouterr().out


def test_failpoints_of_switch_and_worker(tmp_path: Path) -> None:
    """I1, I3. Goal: a switch killed with all gradients of an extent in its hands goes on, once; a
    worker that fails at a place ends the run, and says at which."""
    outside = Outside(tmp_path / "switch.tmp")
    light = ("-m", "tests.light_job", "--steps", "6")
    with Cluster.run(
        tmp_path, *light, name="switch",
        flags=["--workers", "2", "--restarts", "1", "--state", str(tmp_path / "state")],
        environ={**outside.environ, "LUWU_FAILPOINTS": "switch.before_sum=kill@5"},
    ) as cluster:  # fmt: skip
        assert cluster.wait() == 0, cluster.output
        assert "ended with signal SIGKILL; started again" in cluster.output
        assert cluster.results()["node.json"]["steps"] == 6
    with Cluster.run(
        tmp_path, *light, name="worker",
        flags=["--workers", "1", "--state", str(tmp_path / "other")],
        environ={**outside.environ, "LUWU_FAILPOINTS": "worker.before_push=raise@2"},
    ) as cluster:  # fmt: skip
        assert cluster.wait() == 4, cluster.output
        assert "failpoint worker.before_push, pass 2" in cluster.output
    assert outside.leftovers() == []


@pytest.mark.slow  # faults one by one are tested elsewhere
@pytest.mark.feature("long runs under faults")
@pytest.mark.parametrize(
    ("flags", "verdict"),
    [
        ("--minutes 0.1 --every 3s --seed 4 --steps 60 --light", r"[1-9]\d* trials, 0 violations"),
        ("--minutes 0.5 --every 10s --goodput", r"goodput [6-9]\d\.\d %: .* with 3 faults, .*"),
    ],
)
def test_a_short_soak(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: str, verdict: str
) -> None:
    """I1, I2, I3, I8. Goal: faults happen, and nothing is wrong with what comes of them."""
    monkeypatch.setattr(soak, "COMPUTE_MS", 120.0)  # few steps, and yet time for two faults
    monkeypatch.setattr(soak_goodput, "CALM_S", 5.0)
    code = soak.main(flags.split())
    said = capsys.readouterr().out
    assert code == 0, said
    assert re.fullmatch(verdict, said.splitlines()[-1])
