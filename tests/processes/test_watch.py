"""A run that is watched: under way, stopped, failed; its script's numbers."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from luwu.launch.processes.run_directory import RunDirectory
from luwu.monitor.watch import Watch
from tests.helpers.waiting import is_soon
from tests.processes.commands import DEADLINE_S, Terminal, write_light

SCRIPT = """
import torch
import luwu

luwu.init()
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 8))
luwu.fully_shard_each(model, torch.nn.Linear)
optimizer = luwu.optim.SGD(model.parameters(), lr=0.001)
for step in range(STEPS):
    loss = model(torch.ones(2, 16)).square().sum()
    loss.backward()
    luwu.log(loss=loss, before_step=step)
    optimizer.step()
    optimizer.zero_grad()
    luwu.log(after_step=step, two=torch.tensor(2))
if luwu.rank() == 0:
    try:
        luwu.log(wrong=torch.ones(3))
    except luwu.ConfigError as error:
        print(error)
luwu.finish()
"""


@pytest.mark.feature("values that the script logs, luwu.log")
def test_numbers_of_the_script_are_kept_with_their_steps(shell: Terminal) -> None:
    """Goal: what is logged before and after step() belongs to the step whose backward ran last;
    status and report have it; what is no number is refused."""
    script = shell.directory / "script.py"
    script.write_text(SCRIPT.replace("STEPS", "5"))
    done = shell.succeed("run", "--workers", "2", "--run-dir", "run", str(script))
    assert "luwu.log(wrong=...) takes one number, got a Tensor of shape (3,)" in done.out
    document = Watch(RunDirectory.find(shell.directory / "run")).document()
    page = (shell.directory / "run" / "report.html").read_text()
    steps = {name: found["steps"] for name, found in document["scalars"].items()}
    assert steps == {key: [*range(5)] for key in ("loss", "before_step", "after_step", "two")}
    assert document["scalars"]["after_step"]["values"] == [0, 1, 2, 3, 4]
    losses = document["scalars"]["loss"]["values"]
    assert losses == sorted(losses, reverse=True)
    assert "loss, as rank 0 recorded it" in page


@pytest.mark.feature("a report of every run")
def test_a_run_is_watched_and_then_stopped(shell: Terminal) -> None:
    """I8. Goal: its steps grow while it runs, with memory, links and processes; Ctrl-C ends all of
    them in order, within seconds, and leaves a report of what was decided; the watch says so."""
    script = write_light(shell.directory / "light.py", steps=10**6)
    running = shell.start("run", "--workers", "2", "--run-dir", "run", str(script))
    path = shell.directory / "run"
    assert is_soon((path / "events").is_dir, DEADLINE_S)
    watch = Watch(RunDirectory.find(path))
    first = _wait_for_steps(watch, 3)
    later = _wait_for_steps(watch, first["steps"]["done"] + 20)
    assert later["state"] == "running"
    names = ["node", "switch", "worker-0", "worker-1"]
    assert sorted(each["name"] for each in later["processes"]) == names
    assert all(each["is_alive"] for each in later["processes"])
    assert json.loads(shell.run("status", "--json", "run").out)["state"] == "running"
    assert running.interrupt() == 130
    assert "interrupted" in running.err
    assert "Traceback" not in running.err
    ended = watch.document()
    assert (ended["state"], ended["processes"]) == ("stopped", [])
    assert ended["steps"]["done"] >= later["steps"]["done"]
    assert {row["name"] for row in ended["memory"]} == set(names)
    assert all(row["peak_bytes"] > 0 for row in ended["memory"])
    page = (path / "report.html").read_text()
    assert "LuWu run run: stopped" in page
    assert f"{ended['steps']['done']:,} steps are decided" in page


@pytest.mark.feature("Ctrl-C, USR1, USR2, XCPU, QUIT")
@pytest.mark.parametrize("to_all", [False, True], ids=["the-command", "all-its-processes"])
def test_a_signal_of_a_batch_system_stops_a_run(shell: Terminal, *, to_all: bool) -> None:
    """I8. Goal: it is named, the run stops as after Ctrl-C, and says how it goes on."""
    gate = str(shell.directory / "gate")
    light = ("-m", "tests.light_job", "--steps", "3", "--gate", gate)
    command = shell.start("run", "--workers", "1", "--state", "state", *light)
    command.wait_for("light waits step=2")
    pids = shell.processes() if to_all else [command.process.pid]
    for pid in sorted(pids):  # the launcher's is the lowest
        os.kill(pid, signal.SIGUSR1)
    assert command.wait(30.0) == 130
    assert "luwu: SIGUSR1: stopping\n" in command.err
    assert re.search("Step [01] is decided and kept in state; go on with", command.err)


def _wait_for_steps(watch: Watch, count: int) -> dict[str, object]:
    documents: list[dict[str, object]] = []

    def is_there() -> bool:
        documents.append(watch.document())
        return documents[-1]["steps"]["done"] >= count and bool(documents[-1]["processes"])

    assert is_soon(is_there, DEADLINE_S), f"fewer than {count} steps: {documents[-1]['text']}"
    return documents[-1]
