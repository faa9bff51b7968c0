"""`luwu run --engine ray` on Ray's own cluster of three hosts in one machine.

`make setup` installs ray (80 MB to download, 240 MB installed); skipped without it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luwu.base.clock import SYSTEM_CLOCK, sleep
from tests.processes.commands import POLL_S, Command, Terminal, terminal
from tests.processes.jobs import SMALL, text_file

STEPS = 6
WAIT_S = 150.0

cluster_utils: Any = pytest.importorskip(
    "ray.cluster_utils", reason="needs ray: pip install 'luwu-emulator[ray]'"
)
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of three hosts with a CPU each."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    head = {"num_cpus": 1, "include_dashboard": False}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            made.add_node(num_cpus=1)
        yield made.address
    finally:
        made.shutdown()
        patch.undo()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Terminal]:
    with terminal(tmp_path) as opened:
        yield opened
        assert opened.leftovers() == []


def job(directory: Path, *flags: str) -> list[str]:
    """The script of a run, and its arguments."""
    sizes = ["--steps", str(STEPS), "--data", str(text_file(directory)), *SMALL]
    return ["-m", "workers.train", "--arm", "luwu", "--log-every", "1", *sizes, *flags]


def start(shell: Terminal, cluster: str, *arguments: str) -> Command:
    """`--insecure`: the cluster's hosts have an address off loopback."""
    flags = ["run", "--engine", "ray", "--insecure", "--run-dir", "run", *arguments]
    return shell.start(*flags, RAY_ADDRESS=cluster)


def digest(run: Path) -> str:
    return str(json.loads((run / "results" / "node.json").read_text())["weights_digest"])


def test_ray_gives_the_same_weights(shell: Terminal, cluster: str, tmp_path: Path) -> None:
    """I1, I3, I8. Goal: one digest, by Ray or without, and though a worker is killed: all begin
    again, and the lost step is replayed."""
    plain = shell.start("run", "--run-dir", "plain", "--state", "plain-state", *job(tmp_path))
    assert plain.wait(WAIT_S) == 0, plain.err
    by_ray = start(
        shell, cluster, "--state", "ray-state", "--worker-restarts", "1",
        *job(tmp_path, "--compute-ms", "100"),
    )  # fmt: skip
    kill_worker_after(by_ray, shell, " step=2 ")
    assert by_ray.wait(WAIT_S) == 0, by_ray.err
    assert "all workers are started again, 0 left" in by_ray.err
    assert f"step={STEPS - 1} " in by_ray.out
    assert digest(tmp_path / "run") == digest(tmp_path / "plain")


def kill_worker_after(command: Command, shell: Terminal, text: str) -> None:
    """SIGKILL to worker 1 once the run has said something."""
    end_ns = SYSTEM_CLOCK.now_ns() + int(WAIT_S * 1e9)
    while text not in command.out:
        assert command.process.poll() is None, command.err
        assert SYSTEM_CLOCK.now_ns() < end_ns, command.err
        sleep(POLL_S)
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = environ.read_bytes().split(b"\0")
            line = (environ.parent / "cmdline").read_bytes()
        except OSError:
            continue
        is_ours = any(each.startswith(b"LUWU_RUN_ID=ray-") for each in variables)
        if is_ours and b"RANK=1" in variables and line.split(b"\0")[2:3] == [b"luwu.launch.entry"]:
            os.kill(int(environ.parent.name), signal.SIGKILL)
            return
    raise AssertionError("there is no worker 1")


def test_sigterm_ends_everything(shell: Terminal, cluster: str, tmp_path: Path) -> None:
    """I8. Goal: a scheduler's SIGTERM ends node, switch and workers on all hosts, and the state can
    be opened again at once."""
    train = job(tmp_path, "--compute-ms", "200")
    run = start(shell, cluster, "--state", "state", *train)
    run.wait_for(" step=1 ", of="out")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(30) == 130, run.err
    assert [pid for pid in range_of_processes() if is_of_ray(pid)] == []
    checked = shell.run("verify", "state")
    assert checked.process.returncode == 0, checked.err


def range_of_processes() -> list[int]:
    """Every process there is."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def is_of_ray(pid: int) -> bool:
    """Whether an actor of ours has started it."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(each.startswith(b"LUWU_RUN_ID=ray-") for each in variables)


def test_ray_shows_the_traceback(shell: Terminal, cluster: str, tmp_path: Path) -> None:
    """I6, I8. Goal: a script that fails ends the run as with the local engine: exit code 4, the
    worker and its traceback."""
    script = tmp_path / "bad.py"
    script.write_text("import luwu\nluwu.init()\nraise RuntimeError('no such luck')\n")
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


def test_ray_that_is_too_small(shell: Terminal, cluster: str) -> None:
    """I6. Goal: more workers than CPUs is an error that says both numbers."""
    done = start(
        shell, cluster, "--workers", "5", "--connect-timeout", "40s", "--state", "state",
        "-m", "workers.train",
    )  # fmt: skip
    assert done.wait(WAIT_S) == 3
    assert "it asks for 1 CPUs, the cluster has 3 in all" in done.err
