"""The agent of one host's workers: what they are told, and what comes of one that is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from luwu.launch import agent as module
from luwu.launch.agent import SAYS, Agent, Share, own_agent_command
from luwu.launch.processes.failures import worker_failure
from luwu.launch.processes.run_directory import RunDirectory

WORKER = """
import os, sys, signal, pathlib
here = pathlib.Path(sys.argv[1])
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT")
with open(here / f"starts-{os.environ['RANK']}", "a") as file:
    print(*(os.environ.get(name, "-") for name in names), file=file)
FIRST = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
END
"""
WAITS = "signal.pause()"


class Ended(NamedTuple):
    code: int
    starts: list[list[str]]
    """Variables of the environment that each process wrote as it started, by rank."""
    said: str

    def failure(self, directory: Path) -> str:
        """The message that the launcher makes of it."""
        return str(worker_failure(RunDirectory(directory / "run"), "", self.code))


def run(
    directory: Path, end: str, *, policy: str = "stop", restarts: int = 0, first: int = 0,
    world_size: int = 2,
) -> Ended:  # fmt: skip
    """Two workers that end as `end` says. A sitecustomize lets them begin without torch."""
    ranks = (first, first + 1)
    script = directory / "script.py"
    script.write_text(WORKER.replace("END", end))
    site = directory / "site"
    site.mkdir()
    (site / "sitecustomize.py").touch()
    path = os.pathsep.join([str(site), *sys.path])
    made = RunDirectory.create(directory / "run")
    agent = own_agent_command(
        made, "", Share(ranks, world_size), policy=policy, restarts=restarts
    )  # fmt: skip
    ended = subprocess.run(
        [*agent, str(script), str(directory)], env={**os.environ, "PYTHONPATH": path}, text=True,
        stdout=subprocess.PIPE, check=False, timeout=60,
    )  # fmt: skip
    files = [directory / f"starts-{rank}" for rank in ranks]
    starts = [each.read_text().splitlines() if each.exists() else [] for each in files]
    return Ended(ended.returncode, starts, ended.stdout)


@pytest.mark.parametrize(
    ("policy", "first", "world_size", "starts"),
    [
        ("stop", 0, 2, [["0 0 2 127.0.0.1 0"], ["1 1 2 127.0.0.1 0"]]),
        ("stop", 2, 4, [["2 0 4 - -"], ["3 1 4 - -"]]),
        ("wait", 0, 2, [["0 0 2 - -"], ["1 1 2 - -"]]),
        ("drop", 2, 4, [["2 0 4 - -"], ["3 1 4 - -"]]),
    ],
)
def test_workers_have_what_torchrun_gives(
    tmp_path: Path, policy: str, first: int, world_size: int, starts: list[list[str]]
) -> None:
    """Goal: RANK and WORLD_SIZE are the job's, LOCAL_RANK counts on this host; and where a process
    group of torch.distributed meets, which has none elsewhere and cannot outlive a process of its.
    """
    assert run(tmp_path, "", policy=policy, first=first, world_size=world_size) == (0, starts, "")


@pytest.mark.parametrize("policy", ["stop", "drop"])
def test_a_host_without_workers_says_what_to_do(tmp_path: Path, policy: str) -> None:
    """I6. Goal: when the workers of a host are lost its command ends, and names the way back."""
    killed = "os.kill(os.getpid(), 9)"
    ended = run(tmp_path, killed, policy=policy, first=2, world_size=4)
    assert ended.code == 4
    said = "start this command again, and its ranks take part again"
    assert said in ended.failure(tmp_path)


def test_all_are_started_again(tmp_path: Path) -> None:
    """Goal: one is killed while the other waits; both start again, and are told so."""
    killed = "os.kill(os.getpid(), 9) if os.environ['RANK'] == '1' else signal.pause()"
    code, starts, said = run(tmp_path, f"if FIRST: {killed}", restarts=1)
    assert code == 0
    assert starts[1] == ["1 1 2 127.0.0.1 0", "1 1 2 127.0.0.1 1"]
    assert starts[0][-1] == "0 0 2 127.0.0.1 1"
    assert said.startswith(f"{SAYS}worker 1 (pid ")
    how = "lost: signal SIGKILL; all workers of this host are started again, 0 restarts left\n"
    assert said.endswith(how)


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [
        ("os.kill(os.getpid(), 9)", 4, f"was lost: signal {signal.SIGKILL.name}; no restarts"),
        ("os._exit(7)", 7, "was lost: exit code 7; no restarts are left (--worker-restarts); log "),
        ("raise ValueError('bad batch')", 1, "failed with ValueError (exit code 1); log "),
    ],
)
def test_a_loss_ends_all(tmp_path: Path, end: str, code: int, how: str) -> None:
    """I6, I8. Goal: the others are stopped, and the launcher names the worker and how it ended, by
    its own words where it had some."""
    ended = run(tmp_path, f"if os.environ['RANK'] == '1': {end}\n{WAITS}")
    assert ended.code == code
    failure = ended.failure(tmp_path)
    assert failure.startswith("worker 1 ")
    assert how in failure


MEMBER = """
from luwu.base.events import Recorder
rank = os.environ["RANK"]
events = here / "run" / "events" / f"worker-{rank}.jsonl"
recorder = Recorder(role="worker", path=events, printed=None)
IS_FIRST = len((here / f"starts-{rank}").read_text().splitlines()) == 1
"""
"""Of a worker that has begun a job."""


@pytest.mark.parametrize("policy", ["stop", "wait"])
def test_code_0_in_the_middle_of_a_script_is_a_loss(tmp_path: Path, policy: str) -> None:
    """I6. Goal: os._exit(0) of a member is a lost worker, under either policy, and said as one."""
    end = f"{MEMBER}os._exit(0) if rank == '1' else {WAITS}"
    ended = run(tmp_path, end, policy=policy)
    assert ended.code == 4
    failure = ended.failure(tmp_path)
    assert "was lost: exit code 0 in the middle of its script (os._exit?)" in failure


def test_code_0_in_the_middle_of_a_script_is_mended_by_a_restart(tmp_path: Path) -> None:
    """Goal: as of a worker that was killed; the second start ends well."""
    end = f"{MEMBER}os._exit(0) if rank == '1' and IS_FIRST else None"
    code, starts, said = run(tmp_path, end, policy="wait", restarts=1)
    assert (code, len(starts[1])) == (0, 2)
    assert "exit code 0 in the middle of its script" in said


LEFT = f"{MEMBER}recorder.event('worker.leaves', rank=int(rank), step=1)\n"


@pytest.mark.parametrize(
    "how", [f"{LEFT}os._exit(0)", f"{LEFT}os.kill(os.getpid(), 9)", "os._exit(0)"]
)
def test_a_worker_that_nobody_waits_for_is_done_however_it_ends(tmp_path: Path, how: str) -> None:
    """Goal: nothing is lost with one whose steps are decided, where a signal is said, or with one
    that never began a job."""
    code, starts, said = run(tmp_path, how)
    assert (code, [len(each) for each in starts]) == (0, [1, 1])
    assert said.count("after it had left the job") == (0 if "exit" in how else 2)


@pytest.mark.parametrize("policy", ["stop", "wait"])
def test_what_starting_again_would_not_mend(tmp_path: Path, policy: str) -> None:
    """I6. Goal: a worker that refuses its configuration is not started again."""
    end = f"sys.exit(2) if os.environ['RANK'] == '0' else {WAITS}"
    ended = run(tmp_path, end, policy=policy, restarts=3)
    assert ended.code == 2
    assert len(ended.starts[0]) == 1


def test_workers_wait_for_what_they_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: torch is imported while switch and node start, and no script begins before they listen.
    Method: the file appears as the agent looks for the third time."""
    when = tmp_path / "connect.json"
    done: list[str] = []

    def sleep(seconds: float) -> None:
        done.append("sleep")
        if len(done) == 4:
            when.touch()

    monkeypatch.setattr(module, "sleep", sleep)
    monkeypatch.setattr(module, "import_for_children", lambda: done.append("torch"))
    monkeypatch.setattr(module, "Forked", lambda *_: done.append("worker"))
    Agent(
        ["script.py"], share=Share.of_all(2), policy="stop", restarts=0,
        run=RunDirectory(tmp_path), prefix="", when=when,
    )  # fmt: skip
    assert done == ["torch", "sleep", "sleep", "sleep", "worker", "worker"]


IMPORTER = """
import atexit, json, os, sys, threading
from pathlib import Path
here, rank = Path(sys.argv[1]), int(os.environ["RANK"])
with open(here / f"starts-{rank}", "a") as file:
    print(*(name in sys.modules for name in ("torch", "numpy", "luwu.join.open")), file=file)
if rank == 1:
    os.environ["OMP_NUM_THREADS"] = "1"
if rank == 2:
    sys.path.insert(0, str(here / "other"))
if rank == 4:
    import numpy
    with open(here / f"starts-{rank}", "a") as file:
        print("torch" in sys.modules, "numpy" in sys.modules, file=file)
    os.environ["OMP_NUM_THREADS"] = "1"
import torch.nn
import numpy
def tell():
    import random
    facts = {"number": torch.NUMBER} if rank == 2 else {
        "threads": torch.get_num_threads(), "sum": torch.ones(2).sum().item(),
        "torch": torch.rand(1).item(), "numpy": numpy.random.rand(), "random": random.random(),
        "spec": type(torch.__spec__.loader).__name__,
        "found": sys.modules["torch"] is torch and sys.modules["torch.nn"] is torch.nn,
    }
    (here / f"facts-{rank}").write_text(json.dumps(facts))
late = threading.Thread(target=lambda: threading.main_thread().join())
late.start()
atexit.register(lambda: (late.join(), tell()))
"""


def test_torch_is_imported_once_for_all(tmp_path: Path) -> None:
    """I3. Goal: a script finds what its own import of torch would have found, and what joins a job
    is there. Method: five ranks, of which three change what an import depends on, one after it
    imported numpy; those begin again, which runs their scripts twice up to there. What they find,
    they write as Python ends."""
    script = tmp_path / "script.py"
    script.write_text(IMPORTER)
    other = tmp_path / "other" / "torch"
    (other / "nn").mkdir(parents=True)
    (other / "__init__.py").write_text("NUMBER = 5\n")
    made = RunDirectory.create(tmp_path / "run")
    agent = own_agent_command(made, "", Share.of_all(5), policy="stop", restarts=0)
    environ = {**os.environ, "OMP_NUM_THREADS": "2"}
    ended = subprocess.run(
        [*agent, str(script), str(tmp_path)], env=environ, check=False, timeout=90
    )
    said = {file.name: file.read_text() for file in made.path.glob("logs/*")}
    assert ended.returncode == 0, said
    starts = [(tmp_path / f"starts-{rank}").read_text().splitlines() for rank in range(5)]
    forked, alone = "False False True", "False False False"
    again = [forked, alone]
    assert starts[:4] == [[forked], again, again, [forked]], said
    assert starts[4] == [forked, "False True", alone, "False True"], said
    first, fewer, others, last, later = (
        json.loads((tmp_path / f"facts-{rank}").read_text()) for rank in range(5)
    )
    assert (first["threads"], fewer["threads"], later["threads"]) == (2, 1, 1)
    assert others == {"number": 5}
    trained = (first, fewer, last, later)
    for facts in trained:
        assert facts["sum"] == 2.0
        assert facts["found"]
        assert facts["spec"] == "SourceFileLoader"
    for name in ("torch", "numpy", "random"):  # seeds are drawn by each process
        assert len({facts[name] for facts in trained}) == len(trained)
