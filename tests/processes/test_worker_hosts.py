"""Workers of several hosts, each host's started by a `luwu run --join URL --ranks` of its own.

A host is killed, command and workers, or cut off, and comes back: its ranks are left out of the
steps meanwhile, or waited for. The weights are those of a loop over `torch.optim` with the same
ranks in the same steps, as the node's record names them (I1, I3).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.namespaces import CENTRE, Hosts
from luwu.base.socket_directory import sweep
from luwu.base.tree import Tree, parse_ranks, read_tree, tree_of_hosts
from luwu.launch.processes.children import command_of
from luwu.testing.leftovers import until_empty
from tests.helpers.local_job import Job, plain_of
from tests.processes.commands import Command, Terminal
from tests.processes.sampling_train import check_counted

STEPS = 12
DROP = ("--on-worker-loss", "drop", "--drop-after", "2s")
URL = r"^(?:or|join) +luwu run --join '(tcp://.*)' (?:--ranks \S+ )?SCRIPT$"


TREE = {
    "top": 'parent = "node"', "a": 'parent = "top"\nworkers = "0-1"',
    "b": 'parent = "top"\nworkers = "2"',
}  # fmt: skip
LUWU = (sys.executable, "-m", "luwu")


def kill_host(shell: Terminal, host: Command, run: str) -> None:
    """Kill all processes at once of a command with this run directory."""
    mark = f"LUWU_RUN_ID={run}-".encode()
    variables = {pid: Path(f"/proc/{pid}/environ") for pid in shell.processes()}
    found = [
        pid for pid, file in variables.items()
        if pid == host.process.pid or (file.exists() and mark in file.read_bytes())
    ]  # fmt: skip
    assert len(found) > 2, f"the command, its guard and a worker were expected, not {found}"
    for pid in found:
        with suppress(ProcessLookupError):  # the end of one may have ended another
            os.kill(pid, signal.SIGKILL)
    host.process.wait()

    def left() -> list[str]:
        sweep(shell.temporary, young_ns=0)  # as the next start does
        return [str(path) for path in shell.temporary.glob(f"*-{host.process.pid}-*")]

    assert until_empty(left, 5.0) == []


class Cluster:
    """A job, and the hosts of its workers; without a network all are this host."""

    def __init__(
        self, shell: Terminal, *flags: str, network: Hosts | None = None, tree: Tree | None = None,
        script: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """`script`: in place of `tests.light_job`, which waits before each step to be let go."""
        self.shell, self._network, self._tree = shell, network, tree
        self._gate = shell.directory / "go"
        light = ("tests.light_job", "--steps", str(STEPS), "--gate", str(self._gate))
        self._script = ("-m", *(script or (*light, "--gate-step", "0")))
        where = ("127.0.0.1", *()) if network is None else (CENTRE, "--insecure")
        bind = ("--bind", f"tcp://{where[0]}:0", *where[1:])
        up = ("up", "--run-dir", "up", "--state", "state", *flags, *bind)
        program = LUWU if network is None else (*network.centre, *LUWU)
        self.up = shell.start_program(program, up, {})
        self._url = "" if "--role" in flags else self.up.wait_for(URL)[1]
        self.hosts: list[Command] = []

    def start(self, ranks: str, *flags: str, join: str = "") -> Command:
        """The command of a host, for the first time or again; in a tree, it joins its leaf."""
        name = f"host-{len(self.hosts)}"
        where = ("--join", join or self._url, "--ranks", ranks)
        run = ("run", *where, *flags, "--run-dir", name, *self._script)
        here = () if self._network is None else self._network.host(int(ranks))
        host = self.shell.start_program([*here, *LUWU], run, {})
        self.hosts.append(host)
        return host

    def make(self, steps: range) -> None:
        """Let all make these steps, and wait until they are decided."""
        later = self._gate.with_suffix(".new")
        later.write_text(str(steps.stop))
        later.replace(self._gate)
        self.wait_for_node(rf"node\.step step={steps[-1]} ")

    def wait_for_gate(self, rank: int) -> None:
        """Until the worker of a host takes part, and waits for the next step."""
        log = self.shell.directory / f"host-{rank}" / "logs" / f"worker-{rank}.log"
        self.hosts[rank].wait_for("light waits", of=log)

    def kill_one(self, host: Command, record: str) -> int:
        """A process of a host alone, by its record, as `worker-0.json`; its process number."""
        records = self.shell.directory / f"host-{self.hosts.index(host)}" / "roles"
        pid: int = json.loads((records / record).read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill(self, host: Command) -> None:
        """All processes of a host at once."""
        kill_host(self.shell, host, f"host-{self.hosts.index(host)}")

    def wait_for_node(self, pattern: str) -> None:
        """Until the node has said so."""
        log = self.shell.directory / "up" / "logs" / "node.log"
        self.up.wait_for(pattern, of=log)

    def end(self) -> list[str]:
        """Hosts that were not killed end well; the ranks of each step."""
        for command in (*self.hosts, self.up):
            assert command.wait() in (0, -signal.SIGKILL), f"{command}:\n{command.err}"
        events = (self.shell.directory / "up" / "events" / "node.jsonl").read_text()
        lines = [json.loads(line) for line in events.splitlines()]
        steps = [line for line in lines if line["name"] == "node.step"]
        assert [step["step"] for step in steps] == list(range(len(steps)))
        return [step["ranks"] for step in steps]

    def check_end(self, world_size: int) -> list[str]:
        """As `end`, where the ranks of the steps explain the digest."""
        ranks = self.end()
        node = json.loads((self.shell.directory / "up" / "results" / "node.json").read_text())
        assert len(ranks) == STEPS
        job = Job(world_size=world_size, steps=STEPS, tree=self._tree)
        made_by = [parse_ranks(each, "ranks") for each in ranks]
        assert node["weights_digest"] == plain_of(job, made_by).digest
        return ranks


@pytest.mark.feature("a host of workers that dies and comes back")
@pytest.mark.faults(1)
def test_a_host_starts_its_own_workers_again(shell: Terminal) -> None:
    """I1, I3, I8. Goal: with `stop`, the default, a lost worker restarts the workers of its host
    alone; without restarts its command ends with exit code 4, and names worker and way back. The
    other host waits, and the step is replayed."""
    cluster = Cluster(shell, "--workers", "3")
    cluster.start("0")
    host = cluster.start("1-2", "--worker-restarts", "1")
    cluster.make(range(4))
    first = cluster.kill_one(host, "worker-2.json")
    host.wait_for(rf"worker 2 \(pid {first}\) was lost: .* all workers of this host are started")
    cluster.make(range(4, 8))
    second = cluster.kill_one(host, "worker-1.json")
    assert host.wait() == 4
    assert f"worker 1 (pid {second}) was lost: signal SIGKILL" in host.err
    assert "start this command again, and its ranks take part again" in host.err
    cluster.start("1-2")
    cluster.hosts.remove(host)
    cluster.make(range(8, STEPS))
    assert cluster.check_end(3) == ["0-2"] * STEPS


@pytest.mark.feature("trees of switches")
@pytest.mark.feature("a host of workers that dies and comes back")
@pytest.mark.faults(1)
@pytest.mark.faults(2)
@pytest.mark.faults(4)
def test_each_host_has_a_switch(shell: Terminal) -> None:
    """I1, I3, I6, I8. Goal: with --hosts each command starts a switch for its ranks. One that dies
    is started again; a host that is lost with its switch comes back. The weights are those of the
    tree of both hosts, or of the one that is left. `luwu status` shows the same on a host as beside
    the node."""
    hosts = ("--workers", "4", "--hosts", "2", "--drop-after", "5s")  # a switch may start slowly
    cluster = Cluster(shell, *DROP, *hosts, tree=tree_of_hosts(4, 2))
    cluster.start("0-1")
    lost = cluster.start("2-3")
    cluster.make(range(3))
    cluster.kill_one(lost, "switch-host-1.ready.json")
    lost.wait_for("switch-host-1.* started again")
    cluster.make(range(3, 6))
    cluster.kill(lost)
    cluster.make(range(6, 9))
    log = shell.directory / "host-0" / "logs" / "switch-host-0.log"
    cluster.hosts[0].wait_for(r"switch\.step step=8 ", of=log)
    for run in ("up", "host-0"):
        status = shell.succeed("status", run).out
        assert "\nhost-0    ranks 0-1\nhost-1    ranks 2-3; in the last step none\n" in status
        assert re.search(r"^steps     9 decided, [0-9.]+ steps/s", status, re.MULTILINE)
        assert "the step was restarted: ranks 2, 3 are lost" in status
    cluster.start("2-3")
    cluster.wait_for_node("ranks 2, 3 are back")
    cluster.make(range(9, STEPS))
    assert cluster.check_end(4) == ["0-3"] * 6 + ["0-1"] * 3 + ["0-3"] * 3


FORKS = """
import os, signal
from luwu.join.open import open_nic
open_nic(0, 2)
if os.fork() == 0:
    signal.pause()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.feature("trees of switches")
@pytest.mark.faults(1)
def test_a_hosts_switch_ends_with_the_rank_that_started_it(shell: Terminal) -> None:
    """I6, I8. Goal: under another launcher it ends also where what that rank forked lives on; else
    a switch that is started again finds its place taken. Its directory is removed. Where none can
    be made for its logs, the error says how to name another."""
    url = "tcp://127.0.0.1:9?job=1&world_size=2&chunk_bytes=16384&hosts=2"
    environ = dict(zip(("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), "001", strict=True))
    environ["LUWU_CONNECT"] = url
    program = [sys.executable, "-c", FORKS]
    (shell.directory / "luwu-runs").symlink_to("/proc/nowhere")
    refused = shell.start_program(program, [], environ)
    assert refused.wait() == 1
    assert "cannot make the run directory " in refused.err
    assert "name another with --run-dir, or LUWU_RUN_DIR" in refused.err
    rank = shell.start_program(program, [], {**environ, "LUWU_RUN_DIR": "elsewhere"})
    assert rank.wait() == -signal.SIGKILL, rank.err

    def others() -> list[str]:
        found = [pid for pid in shell.processes() if "open_nic" not in command_of(pid)]
        return [*map(str, found), *map(str, shell.temporary.iterdir())]

    assert until_empty(others, 10.0) == []
    (child,) = shell.processes()
    os.kill(child, signal.SIGKILL)


@pytest.mark.feature("two hosts that start the same rank")
@pytest.mark.faults(27)
def test_two_hosts_start_the_same_rank(shell: Terminal) -> None:
    """I1, I3, I6, I8. Goal: the later start has the rank from then on, as after a loss; the earlier
    one ends and says so; no step lacks a rank, or counts one twice."""
    cluster = Cluster(shell, "--workers", "2", "--on-worker-loss", "wait")
    cluster.start("0")
    earlier = cluster.start("1")
    cluster.make(range(4))
    later = cluster.start("1")
    later.wait_for("light waits", of=shell.directory / "host-2" / "logs" / "worker-1.log")
    cluster.make(range(4, STEPS))
    cluster.hosts.remove(earlier)
    assert earlier.wait() == 2
    assert "a later start of ranks 1 has joined already; stop this process" in earlier.err
    assert cluster.check_end(2) == ["0-1"] * STEPS


@pytest.mark.feature("workers that join while a job runs")
@pytest.mark.faults(5)
def test_a_host_more_joins(shell: Terminal) -> None:
    """I1, I3, I6, I8. Goal: the job begins with the ranks that are there, and a later host takes
    part from the next step."""
    cluster = Cluster(shell, "--workers-min", "2", "--workers-max", "3", *DROP)
    cluster.start("0-1")
    cluster.make(range(6))
    cluster.start("2")
    cluster.wait_for_node("ranks 2 have joined")
    cluster.make(range(6, STEPS))
    assert cluster.check_end(3) == ["0-1"] * 6 + ["0-2"] * 6


@pytest.mark.slow
@pytest.mark.feature("workers that join while a job runs")
@pytest.mark.faults(5)
def test_a_host_joins_with_its_leaf(shell: Terminal) -> None:
    """I1, I3, I6, I8. Goal: in a tree, whose switches are started by the commands that the one
    above prints, a host and its leaf join later."""

    def printed(command: Command, name: str) -> list[str]:
        return shlex.split(command.wait_for(rf"^join    luwu (.*{name}.*)$")[1])

    file = shell.directory / "tree.toml"
    file.write_text("".join(f"[{name}]\n{place}\n" for name, place in TREE.items()))
    tree, flags = read_tree(file, workers=3), ("--role", "node", "--tree", "tree.toml")
    cluster = Cluster(shell, *flags, "--workers-max", "3", *DROP, tree=tree)
    bind = ("--bind", "tcp://127.0.0.1:0", "--run-dir", "top")
    top = shell.start(*printed(cluster.up, "--name top"), *bind)
    switches = [top]
    for name, ranks, steps in (("a", "0-1", range(6)), ("b", "2", range(6, STEPS))):
        leaf = shell.start(*printed(top, f"--name {name}"), "--run-dir", name)
        switches.append(leaf)
        cluster.start(ranks, join=printed(leaf, f"--ranks {ranks}")[2])
        if name == "b":
            cluster.wait_for_node("ranks 2 have joined")
        cluster.make(steps)
    assert cluster.check_end(3) == ["0-1"] * 6 + ["0-2"] * 6
    assert [switch.wait() for switch in switches] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.feature("workers that join while a job runs")
@pytest.mark.feature("a host of workers that dies and comes back")
@pytest.mark.faults(16)
@pytest.mark.timeout(400)
def test_hosts_come_and_go(shell: Terminal, network: Hosts) -> None:
    """I1, I3, I6, I8. Goal: of four hosts one is cut off and is back, one is killed and comes back,
    one joins late; each step counts exactly the ranks that were there."""
    cluster = Cluster(shell, "--workers-max", "4", *DROP, network=network)
    killed = [cluster.start(str(rank)) for rank in range(3)][2]
    for rank in range(3):
        cluster.wait_for_gate(rank)
    cluster.make(range(2))
    network.cut(1)
    cluster.make(range(2, 4))
    network.heal(1)
    cluster.wait_for_node("ranks 1 are back")
    cluster.make(range(4, 6))
    cluster.kill(killed)
    cluster.make(range(6, 8))
    cluster.start("2")
    cluster.wait_for_node("ranks 2 are back")
    cluster.make(range(8, 10))
    cluster.start("3")
    cluster.wait_for_node("ranks 3 have joined")
    cluster.make(range(10, STEPS))
    expected = ["0-2", "0,2", "0-2", "0-1", "0-2", "0-3"]
    assert cluster.check_end(4) == [ranks for ranks in expected for _ in range(2)]


@pytest.mark.slow
@pytest.mark.feature("samples counted once, over any number of workers")
@pytest.mark.faults(4)
@pytest.mark.faults(5)
def test_samples_over_hosts_that_come_and_go(shell: Terminal) -> None:
    """I1, I6, I8. Goal: one host is killed and is back, another joins, and the decided steps of
    each epoch have each sample once."""
    here = shell.directory
    script = ("tests.processes.sampling_train", str(here))
    cluster = Cluster(shell, "--workers-max", "3", *DROP, script=script)
    cluster.start("0")
    lost = cluster.start("1")
    cluster.wait_for_node(r"node\.step .* ranks=0-1")
    cluster.kill(lost)
    cluster.wait_for_node("ranks 1 are lost")
    (here / "again").touch()
    cluster.start("1")
    cluster.wait_for_node("ranks 1 are back")
    cluster.start("2")
    cluster.wait_for_node("ranks 2 have joined")
    (here / "go").touch()
    made_by = [parse_ranks(ranks, "ranks") for ranks in cluster.end()]
    assert {(0,), (0, 1), (0, 1, 2)} <= set(made_by)
    check_counted(here, made_by)
