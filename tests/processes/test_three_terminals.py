"""Node, switch and workers started by three commands, over tcp, as on three hosts.

Whatever the order, and however the others are found, the job ends by itself, nothing is left, and
the weights are those of plain torch in one process (I3).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from luwu.base.json_file import remove_partial
from luwu.checkpoint.refill import refill
from luwu.launch.processes.children import is_alive
from luwu.testing.leftovers import until_empty
from tests.processes.commands import Command, Terminal, summary
from tests.processes.jobs import exported, light_digest
from tests.processes.test_worker_hosts import kill_host
from tests.suites.free_port import free_port

STEPS = 6
JOB = ["-m", "tests.light_job", "--steps", str(STEPS)]
"""The script of every run here, and its arguments."""


def kill_all(command: Command, records: Path) -> None:
    """Kill a command and what it has started."""
    pids = [each["pid"] for each in json.loads(records.read_text())["processes"]]
    assert len(pids) == 1, records.read_text()
    for pid in (command.process.pid, *pids):
        os.kill(pid, signal.SIGKILL)
    command.wait()
    assert until_empty(lambda: [str(pid) for pid in pids if is_alive(pid)], 10.0) == []
    for pid in (command.process.pid, *pids):  # who would remove it was killed too
        remove_partial(records.parent, pid)


def assert_all_end(workers: Command, *others: Command) -> None:
    """The workers finish, then the others by themselves."""
    assert workers.wait() == 0, workers.err
    for serving in others:
        assert serving.wait(20) == 0, serving.err
        assert "the job is finished" in serving.err


@pytest.mark.parametrize(
    "order", [pytest.param("node-first", marks=pytest.mark.slow), "workers-first"]
)
def test_three_terminals_with_one_directory(shell: Terminal, order: str) -> None:
    """Goal: with a directory all can see, the three start in any order: each waits, and says so."""
    shared = ["--run-dir", "up", "--connect-timeout", "80s"]
    commands = {
        "node": ["up", "--role", "node", "--memory-budget", "1MiB", *shared],
        "switch": ["up", "--role", "switch", *shared],
        "workers": ["run", "--join", "up/connect.json", "--connect-timeout", "80s", *JOB],
    }
    waits = {"workers": r"waiting for connect\.json", "switch": r"waiting for connect-node\.json"}
    names = ["node", "switch", "workers"]
    started = {}
    for name in names if order == "node-first" else reversed(names):
        started[name] = shell.start(*commands[name])
        if order == "workers-first" and name in waits:
            started[name].wait_for(waits[name])
    assert_all_end(started["workers"], started["switch"], started["node"])

    assert summary(shell.directory / "up")["weights_digest"] == light_digest(STEPS)
    for role in ("node", "switch"):
        log = shell.directory / "up" / "logs" / f"launcher-{role}.log"
        assert f" {role:<7} tcp://127.0.0.1:" in log.read_text()
    assert not list((shell.directory / "up").glob("connect*.json"))


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    with free_port() as one, free_port() as other:
        yield one, other


@pytest.mark.timeout(300)
def test_three_terminals_started_again_by_an_engine(
    shell: Terminal, ports: tuple[int, int]
) -> None:
    """I1, I2, I3. Goal: where an engine runs a command again, because it died with all it had
    started, the job goes on: --job, --chunk and a port make the same URL, which is known before.
    Method: the commands of jobset.yaml; SIGKILL to all processes of each, as if their container
    was killed; again. Switches of one rank each leave the bits as they are."""
    asked = "job=7&world_size=2&chunk_bytes=16384&hosts=2"
    at_node, at_switch = (f"tcp://127.0.0.1:{port}" for port in ports)
    commands = {
        "node": f"--job 7 --chunk 16KiB --bind {at_node} --state s --resume --hosts 2".split(),
        "switch": ["--bind", at_switch, "--join", f"{at_node}?{asked}"],
    }

    def up(role: str) -> Command:
        return shell.start("up", "--role", role, "--run-dir", role, *commands[role])

    def host(rank: int, run: str) -> Command:
        where = ["run", "--join", f"{at_switch}?{asked}", "--ranks", str(rank), "--run-dir", run]
        return shell.start(*where, *JOB, "--compute-ms", "360")

    serving = {role: up(role) for role in commands}
    stays, killed = host(0, "pod-0"), host(1, "pod-1")
    log = shell.directory / "pod-0" / "logs" / "worker-0.log"
    for number, role in enumerate(commands, start=1):
        stays.wait_for(f" step={number} ", of=log)
        kill_all(serving[role], shell.directory / role / f"processes-{role}.json")
        serving[role] = up(role)
    stays.wait_for(" step=3 ", of=log)
    kill_host(shell, killed, "pod-1")
    assert_all_end(host(1, "pod-1-again"), serving["switch"], serving["node"])
    assert stays.wait(20) == 0, stays.err
    assert summary(shell.directory / "node")["weights_digest"] == light_digest(STEPS)


def test_nodes_in_terminals_of_their_own(shell: Terminal) -> None:
    """I2, I3. Goal: two nodes are started one by one, each by the line that the one before printed,
    as on hosts that share no directory; what they export together is what one node makes. The line
    carries the replicas too: each node holds all pages."""
    start = [
        "up", "--role", "node", "--optimizer-nodes", "2", "--replicas", "2", "--chunk", "16KiB",
    ]  # fmt: skip
    first = shell.start(*start, "--state", "state")
    line = first.wait_for(r"^or      luwu (up --role node --number 1 --join) '(tcp://.*)'$")
    second = shell.start(*line[1].split(), line[2], "--state", "state", "--memory-budget", "8MiB")
    second.wait_for(r"^join    luwu up --role switch --join /.*connect-node-1\.json$")
    line = second.wait_for(r"^or      luwu (up --role switch --join) '(tcp://.*)'$")
    switch = shell.start(*line[1].split(), line[2])
    line = switch.wait_for(r"^or      luwu (run --join) '(tcp://.*)' SCRIPT$")
    workers = shell.start(*line[1].split(), line[2], *JOB)
    assert_all_end(workers, switch, second, first)
    assert {path.name for path in (shell.directory / "state").iterdir()} == {"node-0", "node-1"}
    shutil.rmtree(shell.directory / "state" / "node-0")
    assert refill(shell.directory / "state", without=(0,)).nodes == (0,)
    assert exported(shell.directory / "state") == (STEPS, light_digest(STEPS))


@pytest.mark.feature("trees of switches")
def test_all_nodes_know_the_sums(shell: Terminal) -> None:
    """I3. Goal: a node that joins another one makes the same sums of contributions that found no
    slot, by --hosts or by a tree; one that has another tree is refused."""
    file = shell.directory / "tree.toml"
    file.write_text(
        '[top]\nparent = "node"\nworkers = "2-3"\n[a]\nparent = "top"\nworkers = "0-1"\n'
    )
    start = ("up", "--role", "node", "--optimizer-nodes", "2", "--workers", "4")
    for run, flags in (("hosts", ["--hosts", "2"]), ("tree", ["--tree", "tree.toml"])):
        first = shell.start(*start, *flags, "--run-dir", run, "--state", f"{run}-0")
        line = first.wait_for(r"^join    luwu (up .*--number 1.*)$")[1]
        second = shell.start(*line.split(), "--run-dir", run, "--state", f"{run}-1")
        line = second.wait_for(r"^join    luwu (up --role switch.*)$")[1]
        roles = (shell.directory / run / "roles" / f"{role}.json" for role in ("node", "node-1"))
        groups = [json.loads(role.read_text())["spec"]["groups"] for role in roles]
        assert groups[0] == groups[1]
        assert 0b0011 in groups[0]
        assert ("--tree tree.toml --name top" in line) == (run == "tree")
        assert first.interrupt() == second.interrupt() == 0
    first = shell.start(*start, "--run-dir", "none", "--state", "none-0")
    line = first.wait_for(r"^join    luwu (up .*--number 1.*)$")[1]
    refused = shell.run(*line.split(), "--tree", "tree.toml", "--workers", "4", "--state", "none-1")
    assert refused.process.returncode == 2
    assert "was started with the tree of one switch, this role with 0-1|0-3" in refused.err
    assert first.interrupt() == 0


def test_three_terminals_stopped_by_hand(shell: Terminal) -> None:
    """I8. Goal: Ctrl-C in each terminal, while all wait for workers, leaves nothing."""
    shared = ["--run-dir", "up"]
    node = shell.start("up", "--role", "node", *shared)
    switch = shell.start("up", "--role", "switch", *shared)
    switch.wait_for("^join ")
    workers = shell.start("run", "--join", "nowhere", "-m", "tests.light_job")
    workers.wait_for("waiting for ")
    assert workers.interrupt() == 130, workers.err
    assert switch.interrupt() == 0, switch.err
    assert node.interrupt() == 0, node.err
    assert shell.leftovers() == []
    assert not list((shell.directory / "up").glob("connect*.json"))
