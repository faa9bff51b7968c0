"""A job of several optimizer nodes is read while it trains, and goes on with what was attached."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.commands import Terminal, terminal

TRAIN = """
import os
import sys
import time
import torch
import luwu

torch.manual_seed(3)
luwu.init()
model = torch.nn.Linear(4096, 32)
luwu.fully_shard(model)
optimizer = luwu.optim.AdamW(model.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(luwu.rank())
luwu.attach("generator", generator, per_rank=True)
for step in range(optimizer.next_step, int(sys.argv[1])):
    model(torch.rand(2, 4096, generator=generator)).square().mean().backward()
    result = optimizer.step()
    optimizer.zero_grad()
    result.wait()
    if luwu.rank() == 0:
        print(f"done {step}", flush=True)
    while step == 3 and not os.path.exists("go"):
        time.sleep(0.01)
luwu.finish()
"""
"""33 chunks of 16 KiB. What is attached to step 3 is decided with it."""
NODES = ("--optimizer-nodes", "2", "--replicas", "2")
FLAGS = ("run", "--workers", "2", *NODES, "--chunk", "16KiB", "--memory-budget", "64MiB")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Terminal]:
    with terminal(tmp_path) as opened:
        (tmp_path / "train.py").write_text(TRAIN)
        yield opened
        assert opened.leftovers() == []


def digest(shell: Terminal) -> str:
    """Of the weights of the last run."""
    path = shell.directory / "luwu-runs/latest/results/node.json"
    found: str = json.loads(path.read_text())["weights_digest"]
    return found


def exported(shell: Terminal, source: str, out: str) -> str:
    """What an export says of the weights."""
    done = shell.run("export", source, out)
    assert done.process.returncode == 0, done.err
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
    done = shell.run("snapshot", "luwu-runs/latest", "kept")
    assert done.process.returncode == 0, done.err
    (shell.directory / "go").touch()
    assert running.wait() == 0, running.err
    expected = digest(shell)
    assert shell.run("verify", "kept", "--full").process.returncode == 0
    assert exported(shell, "kept", "again") == said
    shutil.rmtree(shell.directory / "kept/node-0")
    done = shell.run("refill", "kept")
    assert (done.process.returncode, "--without 0" in done.err) == (2, True)
    assert shell.run("refill", "kept", "--without", "0").process.returncode == 0
    done = shell.run(*FLAGS, "--state", "kept", "--resume", "train.py", "6")
    assert (done.process.returncode, done.out) == (0, "done 4\ndone 5\n"), done.err
    assert digest(shell) == expected
