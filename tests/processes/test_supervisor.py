"""Real processes: started, killed, started again, and none of them left behind (I8)."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError, Interrupted, LuwuError, WorkerFailed
from luwu.base.process_memory import private_bytes
from luwu.base.tree import one_switch
from luwu.launch import roles
from luwu.launch.agent import Share
from luwu.launch.processes.children import (
    ROLE_TUNABLES,
    Child,
    is_alive,
    marked_processes,
    wait_for_end,
)
from luwu.launch.processes.console import Console
from luwu.launch.processes.relay import ByLine
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.roles import RoleProcess
from luwu.launch.specs import SwitchEnds, job_spec, switch_spec
from luwu.launch.supervisor import Supervisor
from luwu.testing.cluster import SOURCE, Cluster
from tests.helpers.waiting import is_soon

STOP_S_MAX = 10.0
"""Takes less than 2 s on an idle machine; what is not told to end would never end."""
SLEEPS = "import os, time\nprint('started', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    return RunDirectory.create(tmp_path / "run")


@pytest.fixture
def supervisor(run_directory: RunDirectory) -> Iterator[Supervisor]:
    with Supervisor(run_directory, Console(), restarts_max=1, connect_timeout_s=30) as made:
        yield made


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(text)
    return str(path)


def start(supervisor: Supervisor, path: str, *, lines: list[str] | None = None) -> None:
    """One worker without torchrun, which takes seconds to start."""
    collect = (lambda line: None) if lines is None else lines.append
    supervisor.train([path], share=Share.of_all(1), connect=None, sink=ByLine(collect), alone=True)


def poll_until(supervisor: Supervisor, role: str, *, but: int = 0) -> int:
    """The process number of a role, once it is in processes.json and is not `but`."""
    found: list[int] = []

    def is_there() -> bool:
        supervisor.poll()
        pids = [entry.pid for entry in supervisor.run.read_processes() if entry.role == role]
        found[:] = [pid for pid in pids if pid != but and is_alive(pid)]
        return bool(found)

    assert is_soon(is_there, 30), f"no {role} but {but}"
    return found[0]


def add_switch(
    supervisor: Supervisor, listen: str = "tcp://127.0.0.1:0", *, role: str = "switch",
    parent: str = "tcp://127.0.0.1:9",
) -> str:  # fmt: skip
    spec = switch_spec(
        RunConfig(), supervisor.run, job_spec(RunConfig(), job=7, chunk_bytes=16384),
        SwitchEnds(listen=listen, parent=parent),
        tree=(tree := one_switch(2)), place=tree.root,
    )  # fmt: skip
    return supervisor.add_role(role, spec)


# ---------------------------------------------------------------------- workers


def test_a_script_runs_as_itself(supervisor: Supervisor, tmp_path: Path) -> None:
    """Goal: the script sees its own arguments, name and directory, and rank 0 is shown."""
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    path = script(
        tmp_path, "import sys, beside\nprint(__name__, sys.argv[1:], beside.VALUE, flush=True)\n"
    )
    lines: list[str] = []
    sink = ByLine(lines.append)
    supervisor.train([path, "--x", "1"], share=Share.of_all(1), connect=None, sink=sink, alone=True)
    supervisor.wait()
    assert lines == ["__main__ ['--x', '1'] 5"]


def test_a_failed_worker_ends_the_run_with_its_traceback(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    start(supervisor, script(tmp_path, "def f():\n    raise ValueError('boom')\nf()\n"))
    with pytest.raises(WorkerFailed) as caught:
        supervisor.wait()
    text = str(caught.value)
    assert caught.value.exit_code == 4
    assert "worker 0 failed with ValueError" in text
    assert text.rstrip().endswith("ValueError: boom")
    assert "runpy" not in text
    record = json.loads(supervisor.run.error("worker-0").read_text())
    assert (record["rank"], record["type"]) == (0, "ValueError")


def test_a_node_that_the_run_goes_on_without_is_not_the_cause(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """Goal: a worker's failure is told as it is, though a node of two had ended for good before."""
    start(supervisor, script(tmp_path, "raise ValueError('boom')\n"))
    supervisor.expect_replicas(2, 2)
    node = RoleProcess(supervisor.run, "node-1", {}, run_id=supervisor.run_id)
    log = supervisor.run.log("node-1")
    command = [sys.executable, "-c", "raise SystemExit(5)"]
    node.child = Child("node-1", command, log=log, environ=os.environ)
    assert wait_for_end(node.child, 30) == 5
    supervisor._roles.append(node)
    with pytest.raises(WorkerFailed, match="ValueError"):
        supervisor.wait()


def test_a_role_that_nobody_greets_ends_with_the_workers(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """Goal: a switch that was started again as the job ended, when its workers and its node are
    gone, is told that all is over, and is not waited for."""
    add_switch(supervisor)
    start(supervisor, script(tmp_path, "pass"))
    supervisor.wait()
    assert supervisor.run.result("switch.json").exists()


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("from luwu import ConfigError\nraise ConfigError('no such thing')", "no such thing", 2),
        ("import sys\nprint('why it ended')\nsys.exit(3)\n", "why it ended", 3),
    ],
)
def test_an_error_of_ours_or_of_the_script_keeps_its_exit_code(
    supervisor: Supervisor, tmp_path: Path, text: str, said: str, code: int
) -> None:
    """Goal: a script that only exits is shown by its log."""
    start(supervisor, script(tmp_path, text))
    with pytest.raises(LuwuError, match=said) as caught:
        supervisor.wait()
    assert caught.value.exit_code == code


@pytest.mark.parametrize(
    ("number", "shown"), [(signal.SIGTERM, "a signal to stop"), (signal.SIGKILL, "exit code 137")]
)
def test_a_worker_that_ends_while_it_writes_leaves_no_partial_file(
    supervisor: Supervisor, tmp_path: Path, number: signal.Signals, shown: str
) -> None:
    """I8. Method: the signal comes when the record of its error is written and not renamed yet."""
    stops = f"os.replace = lambda *_: (os.kill(os.getpid(), {number:d}), time.sleep(600))\n"
    start(supervisor, script(tmp_path, f"import os, time\n{stops}raise ValueError\n"))
    with pytest.raises(WorkerFailed, match=shown):
        supervisor.wait()
    supervisor.close()
    assert list(supervisor.run.path.rglob("*.partial")) == []


def test_what_a_worker_started_ends_with_it(supervisor: Supervisor, tmp_path: Path) -> None:
    """I8. Goal: a grandchild in a session of its own does not outlive the run."""
    text = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],\n"
        "                     start_new_session=True)\n"
        "open('grandchild', 'w').write(str(p.pid))\n"
    )
    path = script(tmp_path, f"import os\nos.chdir({str(tmp_path)!r})\n{text}")
    start(supervisor, path)
    supervisor.wait()
    assert not is_alive(int((tmp_path / "grandchild").read_text()))


def test_stopping_takes_less_than_two_seconds(run_directory: RunDirectory, tmp_path: Path) -> None:
    """I8. Goal: the worst case, a script that ignores SIGTERM, is over in 2 s too."""
    path = script(
        tmp_path, "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPS
    )
    stopping: list[int] = []
    stopped = Supervisor(run_directory, Console(), should_stop=lambda: bool(stopping))
    with pytest.raises(Interrupted), stopped as supervisor:
        add_switch(supervisor)
        start(supervisor, path)
        pids = [poll_until(supervisor, role) for role in ("switch", "worker")]
        stopping.append(SYSTEM_CLOCK.now_ns())
        supervisor.wait()
    assert (SYSTEM_CLOCK.now_ns() - stopping[0]) / 1e9 < STOP_S_MAX
    assert not any(is_alive(pid) for pid in pids)
    assert run_directory.read_processes() == []


# ---------------------------------------------------------------------- roles


@pytest.mark.parametrize("spare", ["none yet", "ready", "dead"])
def test_a_killed_switch_starts_again_where_it_was(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, spare: str
) -> None:
    """Goal: the same endpoint, another process, its spare if there is one, processes.json
    rewritten; when no restarts are left, there is no spare, and the run ends."""
    if spare != "none yet":
        monkeypatch.setattr(roles, "SPARE_AFTER_NS", 0)
    endpoint = add_switch(supervisor)
    first, [role] = poll_until(supervisor, "switch"), supervisor._roles
    waiting = 0 if role.spare is None else role.spare.pid
    assert (waiting == 0) is (spare == "none yet")
    for pid in (waiting, first) if spare == "dead" else (first,):
        os.kill(pid, signal.SIGKILL)
        assert is_soon(lambda pid=pid: not is_alive(pid))
    second = poll_until(supervisor, "switch", but=first)
    assert (second == waiting) is (spare == "ready")
    ready = supervisor.run.role("switch.ready.json")
    assert is_soon(lambda: supervisor.poll() or ready.exists(), 30)
    assert json.loads(ready.read_text())["endpoint"] == endpoint
    supervisor.poll()
    assert role.spare is None
    os.kill(second, signal.SIGKILL)
    with pytest.raises(LuwuError, match="signal SIGKILL; no restarts are left"):
        is_soon(supervisor.poll)


def test_a_switch_that_dies_when_the_job_is_over_stays_dead(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    """Goal: the run ends well, although no restarts are left: nobody needs it any more.
    Method: its last worker ends while it is stopped, and cannot do as it is told."""
    with Supervisor(run_directory, Console(), restarts_max=0) as supervisor:
        add_switch(supervisor)
        pid = poll_until(supervisor, "switch")
        os.kill(pid, signal.SIGSTOP)
        start(supervisor, script(tmp_path, "pass"))
        assert is_soon(supervisor.poll)
        os.kill(pid, signal.SIGKILL)
        supervisor.wait()
    assert not supervisor.run.result("switch.json").exists()


@pytest.mark.parametrize("asked", [None, "glibc.malloc.arena_max=3"])
def test_a_switch_keeps_the_memory_of_messages(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    """Goal: malloc is told so when the switch starts, unless the user has told it otherwise."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if asked is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", asked)
    add_switch(supervisor)
    environ = Path(f"/proc/{poll_until(supervisor, 'switch')}/environ").read_text()
    # glibc ends each setting with a zero, in place
    assert f":GLIBC_TUNABLES={asked or ROLE_TUNABLES}:" in environ.replace("\0", ":")


def die_at_start(tmp_path: Path, times: int) -> str:
    """A PYTHONPATH with which a switch is killed as it starts, so many times."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, pathlib, signal, sys\n"
        "starts = pathlib.Path(__file__).with_name('starts')\n"
        "if 'switch_emu' in sys.orig_argv:\n"
        "    with starts.open('a') as file:\n"
        "        file.write('x')\n"
        f"    if len(starts.read_text()) <= {times}:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    return f"{site}{os.pathsep}{SOURCE}"


@pytest.mark.faults(32)
def test_a_role_that_dies_before_it_listens_is_started_again(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: `--restarts` counts from the first start on, before there are workers, whenever in a
    look the role dies. Method: the interpreter of the switch kills itself, once; the first look
    that would find it does not see it."""
    monkeypatch.setenv("PYTHONPATH", die_at_start(tmp_path, 1))
    look, unseen = Supervisor._look_at_role, []

    def look_late(self: Supervisor, role: RoleProcess, **more: bool) -> None:
        assert role.child is not None
        if not unseen and role.child.poll() is not None:
            unseen.append(role.role)
            return
        look(self, role, **more)

    monkeypatch.setattr(Supervisor, "_look_at_role", look_late)
    assert add_switch(supervisor).startswith("tcp://127.0.0.1:")
    assert unseen == ["switch"]
    assert (tmp_path / "site" / "starts").read_text() == "xx"


def test_a_role_that_dies_at_every_start_ends_the_run(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", die_at_start(tmp_path, 2))
    with pytest.raises(LuwuError, match="signal SIGKILL; no restarts are left"):
        add_switch(supervisor)


def test_a_role_that_dies_while_another_starts_is_started_again(supervisor: Supervisor) -> None:
    """Goal: whoever listens already is watched too. Its start has a larger number each time,
    whatever the clock says."""
    endpoint = add_switch(supervisor)
    first = poll_until(supervisor, "switch")
    number = json.loads(supervisor.run.role("switch.json").read_text())["spec"]["incarnation"]
    os.kill(first, signal.SIGKILL)
    assert is_soon(lambda: not is_alive(first))
    add_switch(supervisor, role="switch-b", parent=endpoint)
    [entry] = [e for e in supervisor.run.read_processes() if e.role == "switch"]
    assert entry.pid != first
    again = json.loads(supervisor.run.role("switch.json").read_text())["spec"]
    assert again["incarnation"] > number
    assert again["listen"] == endpoint


def test_a_role_that_is_told_to_stop_is_not_taken_for_done(supervisor: Supervisor) -> None:
    """I6. Goal: a role that ends politely, but before the job does, is started again as one that
    crashed is: the workers would wait for it. Method: SIGTERM from outside."""
    add_switch(supervisor)
    first = poll_until(supervisor, "switch")
    os.kill(first, signal.SIGTERM)
    poll_until(supervisor, "switch", but=first)


def test_a_role_that_refuses_its_input_is_not_started_again(supervisor: Supervisor) -> None:
    with pytest.raises(ConfigError, match=r"switch: .*is not an endpoint"):
        add_switch(supervisor, listen="carrier-pigeon")


def test_a_role_does_not_outlive_whoever_started_it(run_directory: RunDirectory) -> None:
    """I8. Goal: when the launcher is gone, however it went, the switch ends, and its spare.
    Method: a process that starts a switch and is then killed."""
    program = (
        "import sys; from pathlib import Path; from tests.processes import test_supervisor as t\n"
        "from luwu.launch.processes.run_directory import RunDirectory\n"
        "s = t.Supervisor(RunDirectory(Path(sys.argv[1])), t.Console())\n"
        "t.roles.SPARE_AFTER_NS = 0; t.add_switch(s); t.poll_until(s, 'switch')\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, str(run_directory.path)]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    child = Child("launcher", command, log=run_directory.log("launcher"), environ=environ)
    assert wait_for_end(child, 30) == -signal.SIGKILL
    assert is_soon(lambda: not marked_processes(f"{run_directory.path.name}-{child.pid}"), 5)
    assert run_directory.events("switch").read_text().count("clock") == 1  # it did not begin


# ---------------------------------------------------------------------- what the kernel counts


def test_bytes_of_the_last_instant_are_counted(tmp_path: Path) -> None:
    """Goal: what a process writes right before it is killed is in its account."""
    if private_bytes(os.getpid()) is None or not Path("/proc/self/io").exists():
        pytest.skip("this kernel keeps no account of processes")
    program = (
        "import os, signal, sys\n"
        "f = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "os.write(f, bytes(1 << 20)); os.fsync(f); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    child = Child("writer", command, log=tmp_path / "log", environ=dict(os.environ))
    assert wait_for_end(child, 20) == -signal.SIGKILL
    if child.disk.written == 0:
        pytest.skip("this file system is not on a block device")
    assert child.disk.written >= 1 << 20


# ---------------------------------------------------------------------- whole clusters


def test_a_state_in_memory_is_not_started_again(tmp_path: Path) -> None:
    """I2. Goal: a node that kept its state in RAM and died ends the run with code 5."""
    flags = ["--durability", "none", "--workers", "1"]
    script = ("-m", "tests.light_job", "--steps", "1000000")
    with Cluster.run(tmp_path, *script, flags=flags, environ={"LUWU_PRELOAD": "0"}) as cluster:
        cluster.wait_for_text("step=2 ", log="worker-0")
        cluster.kill("node")
        assert cluster.wait(30) == 5, cluster.output
        assert "in RAM is lost" in cluster.output
        assert cluster.leftovers() == []
