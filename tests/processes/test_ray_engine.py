"""`luwu run --engine ray` on Ray's own cluster of three hosts in one machine.

`make setup` installs ray (80 MB to download, 240 MB installed); skipped without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luwu.base.socket_directory import shared_endpoint
from luwu.base.tree import tree_of_hosts
from luwu.testing.leftovers import until_empty
from tests.helpers.local_job import MIB, Job, plain, plain_of
from tests.processes.commands import Command, Terminal, environ_of, every_process, summary
from tests.processes.jobs import light_digest

STEPS = 6
LONG_STEPS = 60
"""More than are made before Ray notices that a host is gone."""
WAIT_S = 150.0

cluster_utils: Any = pytest.importorskip(
    "ray.cluster_utils", reason="needs ray: pip install 'luwu-emulator[ray]'"
)
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of three hosts, two of which have two CPUs."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    head = {"num_cpus": 1, "include_dashboard": False}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            made.add_node(num_cpus=2)
        yield made.address
    finally:
        made.shutdown()
        patch.undo()


def job(*flags: str) -> list[str]:
    """The script of a run, and its arguments."""
    return ["-m", "tests.light_job", "--steps", str(STEPS), *flags]


def start(shell: Terminal, cluster: str, *arguments: str, run_dir: str = "run") -> Command:
    """`--insecure`: the cluster's hosts have an address off loopback."""
    flags = ["run", "--engine", "ray", "--insecure", "--run-dir", run_dir, *arguments]
    return shell.start(*flags, RAY_ADDRESS=cluster)


def kill_worker_after(command: Command, text: str, rank: int = 1) -> None:
    """SIGKILL to a worker once the run has said something."""
    command.wait_for(text, WAIT_S)
    os.kill(worker_process(rank)[0], signal.SIGKILL)


def worker_process(rank: int) -> tuple[int, int]:
    """The process of a worker, and the process by which Ray serves its host."""
    for pid in every_process():
        found = environ_of(pid)
        if is_of_ray(pid) and found.get("RANK") == str(rank):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if line[2:3] == [b"luwu.launch.entry"]:
                return pid, int(found["RAY_RAYLET_PID"])
    raise AssertionError(f"there is no worker {rank}")


def processes_of_ranks(*ranks: str) -> list[str]:
    """What was started for some workers."""
    found = filter(is_of_ray, every_process())
    return [str(pid) for pid in found if environ_of(pid).get("RANK") in ranks]


def is_of_ray(pid: int) -> bool:
    """Whether an actor of ours has started it."""
    return environ_of(pid).get("LUWU_RUN_ID", "").startswith("ray-")


@pytest.mark.slow
@pytest.mark.feature("a lost worker under Ray")
def test_ray_gives_the_same_weights(shell: Terminal, cluster: str) -> None:
    """I1, I3, I8. Goal: the weights of plain torch, though a worker is killed, and started again
    alone while the other one waits."""
    run = start(
        shell, cluster, "--state", "state", "--on-worker-loss", "wait", "--worker-restarts", "1",
        *job("--compute-ms", "600"),
    )  # fmt: skip
    kill_worker_after(run, " step=2 ")
    assert run.wait(WAIT_S) == 0, run.err
    assert f"step={STEPS - 1} " in run.err
    assert "ranks 1 are started again, 0 left" in run.err
    assert summary(shell.directory / "run")["weights_digest"] == light_digest(STEPS)


@pytest.mark.feature("a lost worker under Ray")
@pytest.mark.feature("trees of switches")
@pytest.mark.parametrize(
    ("policy", "lost", "flags", "said"),
    [
        pytest.param(
            "stop", 1, ("--worker-restarts", "1"), "ranks 0-3 are started again, 0 left",
            marks=pytest.mark.slow,
        ),
        (
            "wait", 2, ("--worker-restarts", "1"),
            "ranks 2-3 are started again, 0 left",
        ),
        pytest.param(
            "drop", 2, ("--drop-after", "1s"), "the others go on without ranks 2-3",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_each_host_of_ray_has_a_switch(
    policy: str, lost: int, flags: tuple[str, ...], said: str, shell: Terminal, cluster: str
) -> None:
    """I1, I3, I8. Goal: two ranks on each host, below a switch of their own; the weights are those
    of this tree, though a worker is killed, and nothing is left on the hosts. Who is left out ends
    with its host, before the last step, which waits for a gate."""
    gate = shell.directory / "go"
    run = start(
        shell, cluster, "--state", "state", "--workers", "4", "--hosts", "2", "--on-worker-loss",
        policy, "--switch-memory-budget", "256MiB", *flags,
        *job("--compute-ms", "600", "--gate", str(gate)),
    )  # fmt: skip
    run.wait_for(" step=1 ", WAIT_S)
    hosts = [worker_process(rank)[1] for rank in range(4)]
    assert hosts == [hosts[0]] * 2 + [hosts[2]] * 2
    assert hosts[0] != hosts[2]
    kill_worker_after(run, " step=2 ", lost)
    run.wait_for(said, WAIT_S)
    if policy == "drop":
        assert until_empty(lambda: processes_of_ranks("2", "3"), 30.0) == []
    gate.touch()
    assert run.wait(WAIT_S) == 0, run.err
    tree_job = Job(world_size=4, steps=STEPS, tree=tree_of_hosts(4, 2))
    digests = {plain(tree_job).digest}
    if policy == "drop":
        made_by = [[range(4)] * count + [range(2)] * (STEPS - count) for count in range(1, STEPS)]
        digests = {plain_of(tree_job, each).digest for each in made_by}
    assert summary(shell.directory / "run")["weights_digest"] in digests
    roles = (shell.directory / "run").glob("*-host-?/roles/switch-host-?.json")
    specs = {role.parents[1].name: json.loads(role.read_text())["spec"] for role in roles}
    assert sorted(spec["name"] for spec in specs.values()) == ["host-0", "host-1"]
    assert [spec["memory_budget_bytes"] for spec in specs.values()] == [256 * MIB] * 2
    sockets = [Path(shared_endpoint(name).removeprefix("shm://")).parent for name in specs]
    assert until_empty(lambda: [str(each) for each in sockets if each.exists()], 5.0) == []
    assert [pid for pid in every_process() if is_of_ray(pid)] == []


@pytest.mark.slow
def test_a_killed_worker_is_named(shell: Terminal, cluster: str, tmp_path: Path) -> None:
    """I6. Goal: a worker that could not say why it ended is named by its rank and its log."""
    train = job("--compute-ms", "1200")
    run = start(shell, cluster, "--state", "state", *train)
    kill_worker_after(run, " step=1 ")
    assert run.wait(WAIT_S) == 4, run.err
    assert "worker 1 (pid " in run.err
    assert "was killed by signal 9" in run.err
    assert "run/logs/worker-1.log" in run.err


@pytest.mark.slow
@pytest.mark.feature("trees of switches")
@pytest.mark.parametrize("per_host", [1, 2])
def test_a_lost_host_is_replaced(per_host: int, shell: Terminal) -> None:
    """I1, I3. Goal: with restarts left and CPUs free, the workers begin again on the hosts that are
    there; with --hosts each rank below a switch, as before. Method: three hosts, one with a CPU;
    that of a worker dies once another one has come."""
    head = {"num_cpus": 1, "include_dashboard": False}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    sizes = () if per_host == 1 else ("--workers", "4", "--hosts", "2")
    try:
        nodes = {raylet_of(node): node for node in [made.add_node(num_cpus=per_host)
                                                    for _ in range(2)]}  # fmt: skip
        run = start(
            shell, made.address, "--state", "state", "--worker-restarts", "1", *sizes,
            *job("--compute-ms", "600", "--steps", str(LONG_STEPS)),
        )  # fmt: skip
        run.wait_for(" step=1 ", WAIT_S)
        made.add_node(num_cpus=per_host)
        hosts = [worker_process(rank)[1] for rank in range(2 * per_host)]
        lost = next(host for host in reversed(hosts) if host in nodes)  # not the first host
        made.remove_node(nodes[lost], allow_graceful=False)
        for pid in every_process():  # a host takes all with it, and not Ray's processes alone
            if environ_of(pid).get("RAY_RAYLET_PID") == str(lost):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert run.wait(WAIT_S) == 0, run.err
    finally:
        made.shutdown()
    assert f"ranks 0-{2 * per_host - 1} are started again, 0 left" in run.err
    assert f"step={LONG_STEPS - 1} " in run.err
    tree = None if per_host == 1 else tree_of_hosts(4, 2)
    expected = plain(Job(world_size=2 * per_host, steps=LONG_STEPS, tree=tree))
    assert summary(shell.directory / "run")["weights_digest"] == expected.digest


def raylet_of(node: Any) -> int:
    """The process by which Ray serves a host."""
    return int(node.all_processes["raylet"][0].process.pid)


@pytest.mark.slow
def test_streams_stay_apart_and_a_stopped_run_goes_on(
    shell: Terminal, cluster: str, tmp_path: Path
) -> None:
    """I8. Goal: what worker 0 prints comes by its own stream. A scheduler's SIGTERM ends node,
    switch and workers on all hosts, and says the step and the command that goes on; the state can
    be opened at once, and --resume says where it begins."""
    script = tmp_path / "streams.py"
    script.write_text(SCRIPT)
    run = start(shell, cluster, "--state", "state", str(script), "200")
    run.wait_for("made 2", of="out")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(30) == 130, run.err
    assert [pid for pid in every_process() if is_of_ray(pid)] == []
    assert "half a line" in run.err
    assert "half a line" not in run.out
    assert re.search(r"Step \d+ is decided and kept in .*; go on with", run.err), run.err
    assert "--engine ray" in run.err
    shell.succeed("verify", "state")
    again = start(shell, cluster, "--resume", "--state", "state", str(script), "1", run_dir="again")
    assert again.wait(WAIT_S) == 0, again.err
    assert re.search(r"^resuming at step \d+", again.err, re.MULTILINE), again.err


SCRIPT = """
import sys, torch, luwu
luwu.init()
torch.manual_seed(1)
model = torch.nn.Linear(64, 64)
luwu.fully_shard(model)
optimizer = luwu.optim.AdamW(model.parameters())
for count in range(int(sys.argv[1])):
    model(torch.ones(2, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if luwu.rank() == 0:
        print("made", count, flush=True)
        sys.stderr.write("half a line")
        sys.stderr.flush()
luwu.finish()
"""


def test_ray_shows_the_traceback(shell: Terminal, cluster: str, tmp_path: Path) -> None:
    """I6, I8. Goal: a script that fails ends the run as with the local engine: exit code 4, the
    worker and its traceback."""
    script = tmp_path / "bad.py"
    script.write_text("raise RuntimeError('no such luck')\n")
    done = start(shell, cluster, "--state", "state", str(script))
    assert done.wait(WAIT_S) == 4
    assert "failed with RuntimeError (exit code 1)" in done.err
    assert "bad.py" in done.err
    assert "no such luck" in done.err


def test_ray_listens_off_loopback_only_if_asked(shell: Terminal, cluster: str) -> None:
    """I7. Goal: without --insecure the run is refused, with the switch's own words."""
    flags = ["run", "--engine", "ray", "--state", "state", "-m", "workers.train"]
    done = shell.start(*flags, RAY_ADDRESS=cluster)
    assert done.wait(WAIT_S) == 2
    assert "pass --insecure on a network you trust" in done.err


@pytest.mark.slow
def test_ray_that_is_too_small(shell: Terminal, cluster: str) -> None:
    """I6. Goal: more workers than CPUs, or hosts, is an error that says both numbers."""
    too_many = (
        (("--workers", "6"), "it is asked for 1 CPUs, and the cluster has 5, 0 of them free"),
        (
            ("--workers", "6", "--hosts", "3"),
            "it is asked for 2 CPUs on each of 3 hosts, and the cluster has 5, ",
        ),
    )
    for flags, said in too_many:
        done = start(
            shell, cluster, *flags, "--connect-timeout", "40s", "--state", "state",
            "-m", "workers.train", run_dir=flags[-1],
        )  # fmt: skip
        assert done.wait(WAIT_S) == 3
        assert said in done.err
