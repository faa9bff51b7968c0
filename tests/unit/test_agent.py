"""The agent of one host's workers: what they are told, and what comes of one that is lost."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from luwu.launch.agent import SAYS, Agent, Share
from luwu.launch.processes.failures import worker_failure
from luwu.launch.processes.run_directory import RunDirectory

WORKER = """
import os, sys, signal, pathlib
here = pathlib.Path(sys.argv[1])
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT")
with open(here / f"starts-{os.environ['RANK']}", "a") as file:
    print(*(os.environ.get(name, "-") for name in names), file=file)
FIRST = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
END
"""
WAITS = "signal.pause()"


def run(
    directory: Path, end: str, *, policy: str = "stop", restarts: int = 0, first: int = 0,
    world_size: int = 2,
) -> tuple[int, list[list[str]]]:  # fmt: skip
    """Two workers that end as `end` says; the exit code, and what each start was told, by rank."""
    ranks = (first, first + 1)
    made = RunDirectory.create(directory / "run")
    code = WORKER.replace("END", end)
    command = [sys.executable, "-S", "-c", code, str(directory)]
    agent = Agent(
        command, share=Share(ranks, world_size), policy=policy, restarts=restarts, run=made,
        prefix="",
    )  # fmt: skip
    ended = agent.run()
    files = [directory / f"starts-{rank}" for rank in ranks]
    return ended, [each.read_text().splitlines() if each.exists() else [] for each in files]


def test_workers_have_what_torchrun_gives(tmp_path: Path) -> None:
    """Goal: ranks, and where a process group of torch.distributed meets."""
    assert run(tmp_path, "") == (0, [["0 0 2 127.0.0.1 0"], ["1 1 2 127.0.0.1 0"]])


def test_no_meeting_where_one_may_be_lost(tmp_path: Path) -> None:
    """Goal: a process group cannot outlive one of its processes, so none can be made."""
    assert run(tmp_path, "", policy="wait") == (0, [["0 0 2 - -"], ["1 1 2 - -"]])


def test_ranks_of_a_host_are_those_of_the_job(tmp_path: Path) -> None:
    """Goal: RANK and WORLD_SIZE are the job's, LOCAL_RANK counts on this host."""
    starts = [["2 0 4 - -"], ["3 1 4 - -"]]
    assert run(tmp_path, "", policy="drop", first=2, world_size=4) == (0, starts)


def test_a_host_without_workers_says_what_to_do(tmp_path: Path) -> None:
    """I6. Goal: when all workers of a host are lost its command ends, and names the way back."""
    killed = "os.kill(os.getpid(), 9)"
    ended, _ = run(tmp_path, killed, policy="drop", first=2, world_size=4)
    assert ended == 4
    failure = str(worker_failure(RunDirectory(tmp_path / "run"), "", ended))
    assert "start this command again, and its ranks take part again" in failure


def test_all_are_started_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Goal: one is killed while the other waits; both start again, and are told so."""
    killed = "os.kill(os.getpid(), 9) if os.environ['RANK'] == '1' else signal.pause()"
    ended, starts = run(tmp_path, f"if FIRST: {killed}", restarts=1)
    assert ended == 0
    assert starts[1] == ["1 1 2 127.0.0.1 0", "1 1 2 127.0.0.1 1"]
    assert starts[0][-1] == "0 0 2 127.0.0.1 1"
    said = capfd.readouterr().out
    assert said.startswith(f"{SAYS}worker 1 (pid ")
    assert said.endswith("lost: signal SIGKILL; all workers are started again, 0 restarts left\n")


def test_a_loss_ends_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """I6, I8. Goal: the others are stopped, and the launcher names the worker and the signal."""
    ended, _ = run(tmp_path, f"os.kill(os.getpid(), 9) if os.environ['RANK'] == '1' else {WAITS}")
    assert ended == 4
    made = RunDirectory(tmp_path / "run")
    made.log("torchrun").write_text(capfd.readouterr().out)
    failure = str(worker_failure(made, "", ended))
    assert failure.startswith("worker 1 (pid ")
    assert f"was lost: {signal.SIGKILL.name}" in failure.replace("signal ", "")


@pytest.mark.parametrize("policy", ["stop", "wait"])
def test_what_starting_again_would_not_mend(tmp_path: Path, policy: str) -> None:
    """I6. Goal: a worker that refuses its configuration is not started again."""
    end = f"sys.exit(2) if os.environ['RANK'] == '0' else {WAITS}"
    ended, starts = run(tmp_path, end, policy=policy, restarts=3)
    assert ended == 2
    assert len(starts[0]) == 1
