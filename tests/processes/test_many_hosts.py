"""Workers on two hosts by torchrun, switch and node on a third: each in a network namespace.

A worker is killed, or a whole host and another comes in its place: torchrun's agents start all
workers again, the step that was lost is replayed, and the weights are those of plain torch in one
process (I1, I3).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from benchmarks.namespaces import CENTRE, Hosts
from luwu.launch.processes.children import command_of
from tests.processes.commands import Command, Terminal, environ_of, summary
from tests.processes.jobs import light_digest
from tests.processes.test_worker_hosts import URL

STEPS = 8
KILL_AFTER = 2
"""The step after whose decision a worker is killed."""
WAIT_S = 120.0
JOB = ["-m", "tests.light_job", "--steps", str(STEPS), "--compute-ms", "360"]
"""The script of every run here, and its arguments."""
LUWU = [sys.executable, "-m", "luwu"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def decided_steps(run: Path) -> list[int]:
    """Those that the node has announced so far."""
    file = run / "events" / "node.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return [each["step"] for each in records if each["name"] == "node.step"]


def wait_for_step(shell: Terminal, step: int, serving: Command) -> None:
    """Return when the node has decided a step."""
    events = shell.directory / "up" / "events" / "node.jsonl"
    serving.wait_for(rf'"name":"node\.step".*"step":{step}\b', WAIT_S, of=events)


def worker_on(shell: Terminal, network: Hosts, host: int) -> int:
    """The process number of the worker on a host."""
    here = [pid for pid in shell.processes() if network.is_on(host, pid)]
    found = [
        pid for pid in here
        if "TORCHELASTIC_RUN_ID" in environ_of(pid) and "tests.light_job" in command_of(pid)
    ]  # fmt: skip
    assert len(found) == 1, f"processes of a worker on host {host}: {found}"
    return found[0]


def start_worker(shell: Terminal, network: Hosts, url: str, index: int) -> Command:
    """One worker on a host, which may be started again."""
    flags = [
        "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{network.address(0)}:29400",
        "--rdzv-id", "gpt", "--rdzv-conf", f"is_host={index == 0}",
        "--local-addr", network.address(index), "--log-dir", f"torchrun-{index}",
    ]  # fmt: skip
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environ["LUWU_CONNECT"] = url
    return shell.start_program([*network.host(index), *TORCHRUN], [*flags, *JOB], environ)


def serve(shell: Terminal, network: Hosts, *flags: str) -> tuple[Command, str]:
    """`luwu up` between the hosts, and the URL that it prints."""
    up = ["up", "--run-dir", "up", "--bind", f"tcp://{CENTRE}:0", "--insecure", "--state", "state"]
    serving = shell.start_program([*network.centre, *LUWU], [*up, *flags], {})
    return serving, serving.wait_for(URL)[1]


def check_end(shell: Terminal, commands: list[Command], serving: Command) -> None:
    """All end well, though something was started again, with the weights of plain torch."""
    run = shell.directory / "up"
    for command in (*commands, serving):
        assert command.wait(WAIT_S) == 0, f"{command}:\n{command.err}"
    assert "the job is finished" in serving.err
    assert sorted(set(decided_steps(run))) == list(range(STEPS))
    events = (run / "events" / "node.jsonl").read_text()
    assert "were started again" in events, "the kill disturbed nothing"
    assert summary(run)["weights_digest"] == light_digest(STEPS)


@pytest.mark.feature("torchrun over several hosts")
@pytest.mark.feature("trees of switches")
@pytest.mark.timeout(300)
def test_lost_worker_is_replayed_over_two_hosts(shell: Terminal, network: Hosts) -> None:
    """I1, I3, I8. Goal: one digest, disturbed or not. Method: SIGKILL to the worker of the second
    host in the middle of the run; its agent has all workers started again, on both hosts, and with
    them the switches that the first of each host starts."""
    serving, url = serve(shell, network, "--hosts", "2")
    workers = [start_worker(shell, network, url, index) for index in range(2)]
    wait_for_step(shell, KILL_AFTER, serving)
    (run,) = shell.directory.glob("luwu-runs/*-host-1")
    workers[1].wait_for(rf"switch\.step step={KILL_AFTER} ", of=run / "logs" / "switch-host-1.log")
    assert "\nhost-0    ranks 0\nhost-1    ranks 1\n" in shell.succeed("status", f"{run}").out
    os.kill(worker_on(shell, network, 1), signal.SIGKILL)
    check_end(shell, workers, serving)


@pytest.mark.slow
@pytest.mark.feature("torchrun over several hosts")
@pytest.mark.timeout(300)
def test_lost_host_is_replaced(shell: Terminal, network: Hosts) -> None:
    """I1, I3, I8. Goal: the same command on another host takes the place of a lost one. Method:
    SIGKILL to all that runs on the second host in the middle of the run; then start it on a third,
    while torchrun on the first still takes the second for alive."""
    serving, url = serve(shell, network)
    stays, _ = (start_worker(shell, network, url, index) for index in range(2))
    wait_for_step(shell, KILL_AFTER, serving)
    for pid in shell.processes():
        if network.is_on(1, pid):
            os.kill(pid, signal.SIGKILL)
    comes = start_worker(shell, network, url, 2)
    check_end(shell, [stays, comes], serving)
