"""A job of several optimizer nodes is read while it trains, and goes on with what was attached."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.processes.commands import ATTACHED, Terminal, summary

WAITS = """while step == 3 and not os.path.exists("go"):
        time.sleep(0.01)"""
"""What is attached to step 3 is decided with it."""
NODES = ("--optimizer-nodes", "2", "--replicas", "2")
FLAGS = ("run", "--workers", "2", *NODES, "--chunk", "16KiB", "--memory-budget", "64MiB")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def shell(shell: Terminal) -> Terminal:
    (shell.directory / "train.py").write_text(ATTACHED.replace("DISTURB", WAITS))
    return shell


def digest(shell: Terminal) -> str:
    """Of the weights of the last run."""
    return str(summary(shell.directory / "luwu-runs/latest")["weights_digest"])


def exported(shell: Terminal, source: str, out: str) -> str:
    """What an export says of the weights."""
    done = shell.succeed("export", source, out)
    said = re.search(r"^weights digest .*$", done.out, re.MULTILINE)
    assert said is not None
    return said[0]


@pytest.mark.feature("readers of a decided step")
@pytest.mark.feature("luwu.attach")
def test_several_nodes_are_read_and_resumed(shell: Terminal) -> None:
    """I1, I3, E3. Goal: an export and a snapshot of a job that runs are its last step, on both
    nodes; a run that goes on from the snapshot, with the generators that were attached, ends with
    the weights of the run that was not stopped; also after one directory was lost, and given up.
    Method: workers wait at a gate after step 3."""
    running = shell.start(*FLAGS, "--state", "luwu-state", "train.py", "6")
    running.wait_for(r"^done 3$", of="out")
    said = exported(shell, "luwu-runs/latest", "out")
    done = shell.succeed("snapshot", "luwu-runs/latest", "kept")
    (shell.directory / "go").touch()
    assert running.wait() == 0, running.err
    expected = digest(shell)
    shell.succeed("verify", "kept", "--full")
    assert exported(shell, "kept", "again") == said
    shutil.rmtree(shell.directory / "kept/node-0")
    done = shell.run("refill", "kept")
    assert (done.process.returncode, "--without 0" in done.err) == (2, True)
    shell.succeed("refill", "kept", "--without", "0")
    done = shell.run(*FLAGS, "--state", "kept", "--resume", "train.py", "6")
    assert (done.process.returncode, done.out) == (0, "done 4\ndone 5\n"), done.err
    assert digest(shell) == expected
