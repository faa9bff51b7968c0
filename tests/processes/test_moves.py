"""A lost node or switch is started on another address while the job trains, and found there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from luwu.checkpoint.refill import refill
from luwu.checkpoint.source import RunningState
from luwu.join.connection import join, parse_url
from tests.processes.commands import Command, Terminal, summary
from tests.processes.jobs import exported, light_digest
from tests.processes.test_three_terminals import assert_all_end, kill_all
from tests.suites.free_port import free_port

STEPS = 40
JOB = ["-m", "tests.light_job", "--steps", str(STEPS), "--gate", "gate"]
"""The script of every run here, and its first arguments."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "storage.md"

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.feature("a lost switch or node on another host"),
]


def wait_for_step(shell: Terminal, step: int, workers: Command) -> None:
    """Return when the workers have made a step."""
    workers.wait_for(f" step={step} ", of=shell.directory / "w" / "logs" / "worker-0.log")


def pid_of(shell: Terminal, command: Command, name: str) -> int:
    """The process that a `luwu up` has started, whose command line has this word."""
    found = []
    for pid in shell.processes():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if name.encode() in words and pid != command.process.pid:
            found.append(pid)
    assert len(found) == 1, found
    return found[0]


def commands_of_page(name: str, places: Mapping[str, str]) -> list[list[str]]:
    """The commands of docs/storage.md under this name, with our places."""
    found = re.search(rf"^<!-- test: {name} -->\n```sh\n(.*?)```$", PAGE.read_text(), re.M | re.S)
    assert found is not None
    text = found[1].replace("\\\n", "")
    for theirs, ours in places.items():
        assert theirs in text, theirs
        text = text.replace(theirs, ours)
    return [shlex.split(line)[1:] for line in text.splitlines()]


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_node_and_switch_move_to_other_addresses(shell: Terminal, number: int) -> None:
    """I1, I2, I3, E3, E8. Goal: with a directory that all see, a node that is lost with its own is
    replaced on another address, by the commands of docs/storage.md, and filled; then the switch is.
    Nothing else is started again. With keys, which both keep. Method: SIGKILL to all there is of
    it; workers wait at a gate meanwhile, and the other node's directory is not used in the end."""
    at = shell.directory
    its_command, switch_command = commands_of_page("moves", {
        "--number 1": f"--number {number}", "/shared/run": "up", "10.0.0.7": "127.0.0.2",
        "10.0.0.8": "127.0.0.3", "/data/luwu-state": "elsewhere",
    })  # fmt: skip
    shell.run("keys", "init", "--keys", "keys", "--workers", "2")
    shell.run("keys", "add", "node-1", "--role", "node", "--keys", "keys")
    shared = ["--keys", "keys", "--run-dir", "up"]
    replicas = ["--optimizer-nodes", "2", "--replicas", "2", "--chunk", "16KiB"]

    def node(of: int, *more: str) -> Command:
        return shell.start(
            "up", "--role", "node", *shared, "--number", str(of), "--memory-budget", "8MiB", *more
        )

    nodes = [node(0, *replicas, "--state", "state")]
    nodes[0].wait_for("^join ")
    nodes.append(node(1, "--state", "state"))
    nodes[1].wait_for("^join ")
    switch = shell.start("up", "--role", "switch", *shared)
    workers = shell.start(
        "run", "--keys", "keys", "--join", "up/connect.json", "--run-dir", "w",
        *JOB, "--gate-step", "6", "--compute-ms", "5",
    )  # fmt: skip
    wait_for_step(shell, 5, workers)

    role = ("node", "node-1")[number]
    kill_all(nodes[number], at / "up" / f"processes-{role}.json")
    nodes[number] = shell.start(*its_command, LUWU_KEYS="keys")
    url = nodes[number].wait_for(r"^or      luwu up --role switch --keys keys --join '(.*)'$")[1]
    found = parse_url(url)  # another way to tell the switch: the node in place of the lost one
    assert ["127.0.0.2" in each for each in (found.node, *found.more_nodes)].index(True) == number
    nodes[number].wait_for("switch.returned", of=at / "up" / "logs" / "switch.log")
    kill_all(switch, at / "up" / "processes-switch.json")
    switch = shell.start(*switch_command, LUWU_KEYS="keys")
    (at / "gate").touch()

    assert_all_end(workers, switch, *nodes)
    assert "switch.filled" in (at / "up" / "logs" / "switch.log").read_text()
    assert not list((at / "up").glob("connect*.json"))
    shell.succeed("verify", "--full", f"elsewhere/node-{number}")
    shutil.rmtree(at / "state")
    assert refill(at / "elsewhere", without=[1 - number]).nodes == (1 - number,)
    assert exported(at / "elsewhere") == (STEPS, light_digest(STEPS))


@pytest.mark.slow
def test_a_switch_that_comes_back_after_its_successor_ends(shell: Terminal) -> None:
    """I3, E3. Goal: the URL of the workers has two addresses of the switch: its host stands still,
    and it is started at the other one; when the host goes on, the old start ends by itself, and the
    job and a reader are not disturbed. The node moves too: the file that it writes is copied to the
    switch. Method: SIGSTOP to all there is of the switch, and SIGCONT."""
    with free_port() as port:
        both = ["--advertise", f"127.0.0.1:{port},127.0.0.2:{port}"]
        node = shell.start(
            "up", "--role", "node", "--run-dir", "n", "--state", "state",
            "--advertise", "localhost,127.0.0.2",
        )  # fmt: skip
        line = node.wait_for(r"^or      luwu (up --role switch --join) '(tcp://.*)'$")

        def switch(host: str) -> Command:
            return shell.start(
                *line[1].split(), line[2], "--run-dir", "s", "--bind", f"tcp://{host}:{port}", *both
            )

        old = switch("127.0.0.1")
        url = old.wait_for(r"^or      luwu run --join '(tcp://.*)' SCRIPT$")[1]
        assert url.startswith(f"tcp://127.0.0.1:{port},127.0.0.2:{port}?")
        workers = shell.start(
            "run", "--join", url, "--run-dir", "w", *JOB, "--gate-step", "20", "--compute-ms", "100"
        )
        wait_for_step(shell, 1, workers)
        os.kill(pid_of(shell, node, "node"), signal.SIGKILL)
        node.wait_for("started again as pid")  # at its port, not where others dial it
        wait_for_step(shell, 3, workers)
        file = str(shell.directory / "s" / "connect.json")
        reader = RunningState.of(join(file, timeout_s=10), file)

        stopped = (pid_of(shell, old, "switch"), old.process.pid)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        new = switch("127.0.0.2")
        wait_for_step(shell, 19, workers)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        assert old.wait(60) == 5, old.err
        assert "E512" in old.err
        assert Path(file).exists()  # that of the successor
        with reader:
            size = 4 * reader.description.layout.chunks[0].elems
            reader.read_field(0, "weight", memoryview(bytearray(size)))

        kill_all(node, shell.directory / "n" / "processes-node.json")
        node = shell.start(
            "up", "--role", "node", "--number", "0", "--join", line[2], "--run-dir", "n2",
            "--bind", "tcp://127.0.0.2:0", "--state", "state", "--resume",
        )  # fmt: skip
        node.wait_for("^join ")
        shutil.copy(shell.directory / "n2" / "connect-node.json", shell.directory / "s")
        (shell.directory / "gate").touch()
        assert_all_end(workers, new, node)
    assert summary(shell.directory / "n2")["weights_digest"] == light_digest(STEPS)


@pytest.mark.slow
@pytest.mark.feature("another number of replicas")
def test_replicas_are_added_while_workers_wait(shell: Terminal) -> None:
    """I1, I2, I3. Goal: in the middle of a job of two nodes without replicas, nodes and switch are
    ended and started again with two of each page, by the commands of docs/storage.md; no worker is
    started again, no step is lost, and a node may be lost with its directory from then on.
    Method: Ctrl-C, while workers wait at a gate."""
    at = shell.directory
    refilling, *commands = commands_of_page(
        "replicas", {"/shared/run": "up", "/data/luwu-state": "state"}
    )

    def start(commands: list[list[str]], replicas: str) -> Iterator[Command]:
        for command in commands:
            words = [replicas if word == "2" and before == "--replicas" else word
                     for before, word in pairwise(["", *command])]  # fmt: skip
            node = ["--memory-budget", "8MiB"] if "node" in words else []
            if "--replicas" in words:
                node += ["--chunk", "16KiB"]
            yield (started := shell.start(*words, *node))
            started.wait_for("^join ")

    serving = [*start(commands, "1")]
    workers = shell.start(
        "run", "--join", "up/connect.json", "--run-dir", "w",
        *JOB, "--gate-step", "6", "--compute-ms", "5",
    )  # fmt: skip
    wait_for_step(shell, 5, workers)
    for each in serving:
        each.interrupt()
    shell.succeed(*refilling)
    serving = [*start(commands, "2")]
    (at / "gate").touch()
    assert_all_end(workers, *serving)
    shutil.rmtree(at / "state" / "node-1")
    assert refill(at / "state", without=[1]).replicas == 2
    assert exported(at / "state") == (STEPS, light_digest(STEPS))
