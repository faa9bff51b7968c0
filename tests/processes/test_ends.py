"""The last second of a run, ways in which one rank ends, and output that nobody takes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from luwu.base.json_file import read_json
from luwu.testing.cluster import clean_environ
from tests import kill
from tests.helpers.waiting import is_soon
from tests.processes.jobs import ON_THE_CPU, WITHOUT_TORCH, light_digest

LIMIT_S = 120.0
"""Guards against a wait for ever; the runs take some seconds."""
PRINTS = """
import os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from tests import light_job
idle = ThreadPoolExecutor(); idle.submit(int).result()
print("x" * 100_000, flush=True)
WHEN
light_job.train(3)
print("y" * 100_000, flush=True)
END
"""


@pytest.mark.faults(35)
@pytest.mark.parametrize(("count", "seed"), [(2, 0), pytest.param(8, 8, marks=pytest.mark.slow)])
def test_a_run_whose_process_dies_in_the_last_second(
    count: int, seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """I1, I3, I8. Goal: it ends with 0 and the digest of plain torch, whoever dies: a node
    and a switch; the slow ones are all, with one copy of each page and with two."""
    arguments = ["--role", "last", "--count", str(count), "--seed", str(seed)]
    assert kill.main(arguments) == 0, capfd.readouterr().out


def command(directory: Path, *, when: str = "", end: str = "", flags: Sequence[str] = ()) -> str:
    """`luwu run` of a script that prints more than a pipe holds, for a shell."""
    script = directory / "script.py"
    script.write_text(PRINTS.replace("WHEN", when).replace("END", end))
    words = [
        sys.executable, "-m", "luwu", "run", "--workers", "2", "--memory-budget", "64MiB",
        "--run-dir", "run", "--durability", "process", *flags, str(script),
    ]  # fmt: skip
    return " ".join(words)


def shell(directory: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, whose pipes fail if any part does."""
    environ = {**clean_environ(), **ON_THE_CPU, **WITHOUT_TORCH}
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"], cwd=directory, env=environ, text=True,
        capture_output=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip


def assert_whole(directory: Path, *, warned: str) -> None:
    """The training went on to its end; and the launcher's log has a warning, if there was one."""
    node = read_json(directory / "run/results/node.json")
    assert node is not None
    assert node["weights_digest"] == light_digest(3)
    log = (directory / "run/logs/launcher.log").read_text()
    assert ("WARNING: standard " in log) == bool(warned)
    assert not warned or log.count(warned) == 1
    assert "y" * 100_000 in (directory / "run/logs/worker-0.log").read_text()


@pytest.mark.faults(36)
@pytest.mark.feature("output to a closed pipe or terminal, or a full disk")
@pytest.mark.parametrize(
    ("redirected", "warned"),
    [
        ("| head -c 1", "standard output cannot be written: Broken pipe"),
        ("2> /dev/full", "standard error cannot be written: No space left on device"),
        ("<&- >&- 2>&-", ""),
    ],
)
def test_output_that_nobody_takes_does_not_end_a_run(
    tmp_path: Path, redirected: str, warned: str
) -> None:
    """Goal: the run goes on to its end with exit code 0, and its log says what was given up."""
    ended = shell(tmp_path, f"{command(tmp_path)} {redirected}")
    assert ended.returncode == 0, ended.stderr
    assert_whole(tmp_path, warned=warned)


@pytest.mark.faults(36)
def test_a_terminal_that_is_closed_does_not_end_a_run(tmp_path: Path) -> None:
    """Goal: with nohup a run outlives its terminal, whose errors (EIO) are not those of a disk.
    Method: the worker waits until the terminal is gone."""
    gate = "while not os.path.exists('go'): time.sleep(0.01)"
    line = command(tmp_path, when=gate)
    ours, theirs = pty.openpty()
    environ = {**clean_environ(), **ON_THE_CPU, **WITHOUT_TORCH}
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", "bash", "-c", f"trap '' HUP; {line}"], stdin=theirs,
        stdout=theirs, stderr=theirs, cwd=tmp_path, env=environ,
    ) as process:  # fmt: skip
        os.close(theirs)
        pids = tmp_path / "run/roles/worker-0.json"
        assert is_soon(pids.exists, seconds=LIMIT_S)
        os.close(ours)
        (tmp_path / "go").touch()
        assert process.wait(LIMIT_S) == 0
    assert_whole(tmp_path, warned="standard output cannot be written: Input/output error")


@pytest.mark.parametrize(
    ("redirected", "code"),
    [("| head -c 1", 0), (">&-", 0), ("2>&-", 0), ("> /dev/full", 5), ("2> /dev/full", 0)],
)
def test_other_commands_whose_output_nobody_takes(
    tmp_path: Path, redirected: str, code: int
) -> None:
    """Goal: no traceback and no exit code of Python's own (120), and a result that could not be
    written is an error."""
    ended = shell(tmp_path, f"{sys.executable} -m luwu config {redirected}")
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


STAYS = "ThreadPoolExecutor(thread_name_prefix='uploader').submit(time.sleep, 4)"
BREAKS_OFF = "if os.environ['RANK'] == '1': os._exit(0)"


@pytest.mark.feature("os._exit(0) of one rank")
def test_a_rank_that_ends_by_force_is_lost(tmp_path: Path) -> None:
    """I6. Goal: os._exit(0) of one rank before luwu.init() ends the run at once, with exit code 4,
    and the message and the report say what happened. (Behind it: tests/launch/test_agent.py.)"""
    ended = shell(tmp_path, command(tmp_path, when=BREAKS_OFF))
    assert ended.returncode == 4, ended.stderr
    assert "(os._exit?), without leaving the job" in ended.stderr
    assert "LuWu run run: failed" in (tmp_path / "run/report.html").read_text()


@pytest.mark.feature("a thread of the script that stays behind")
def test_ranks_that_end_after_their_goodbye(tmp_path: Path) -> None:
    """I6. Goal: every step is decided, so the run ends well, though a rank ends by force; and what
    it waits for is said: rank and thread. Idle threads of executors are not named."""
    end = f"{STAYS} if os.environ['RANK'] == '1' else os._exit(0)"
    ended = shell(tmp_path, command(tmp_path, end=end))
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("worker 1 is done") == 1
    assert "its thread uploader_0 still runs" in ended.stderr
    assert_whole(tmp_path, warned="")
