"""Disks that fail under whole runs: what is said, that nobody tries again, and the way back."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.processes.commands import ATTACHED, Command, Terminal
from tests.syscalls import tracing

STATE = "luwu-state"
PAGE = Path(__file__).resolve().parents[2] / "docs/storage.md"
DRIVE_STEPS = 10**6

ROT = """
    if step == 2:
        for name in ("side0.dat", "side1.dat"):
            with open(f"luwu-state/{name}", "r+b") as file:
                size = file.seek(0, 2)
                for offset in range(1000, size, 4096):
                    file.seek(offset)
                    byte = file.read(1)[0]
                    file.seek(offset)
                    file.write(bytes([byte ^ 1]))
"""
"""A byte of every block changes under the node that has the files open."""

LEAST_BUDGET = "320KiB"
"""Little above the least: hardly a page stays in RAM."""
FLAGS = ("run", "--workers", "1", "--no-switch", "--state", STATE, "--chunk", "16KiB")


@pytest.fixture
def shell(shell: Terminal) -> Terminal:
    (shell.directory / "train.py").write_text(ATTACHED.replace("DISTURB", "pass"))
    (shell.directory / "rot.py").write_text(ATTACHED.replace("    DISTURB", ROT))
    return shell


def wait_for_step(command: Command, step: int) -> None:
    """Return when a step is decided."""
    command.wait_for(rf"^done {step}$", of="out")


def node_starts(shell: Terminal) -> int:
    """How often the node of the latest run was started."""
    log = shell.directory / "luwu-runs/latest/logs/node.log"
    return log.read_text().count("node.opened")


@pytest.mark.faults(24)
def test_a_page_that_rots_in_mid_run_ends_it(shell: Terminal) -> None:
    """P3, I6. Goal: found before it is used, named, exit code 5; the node is not started again; the
    state verifies as damaged, and the page's restore command makes a whole one with the weights of
    the export, from which training goes on.
    Method: the script changes bytes of all pages in the files that the node has open."""
    shell.succeed(*FLAGS, "train.py", "2")
    exported = shell.succeed("export", STATE, "last-export")
    done = shell.run(*FLAGS, "--resume", "--memory-budget", LEAST_BUDGET, "rot.py", "6")
    assert done.process.returncode == 5, done.err
    assert re.search(
        r"node: page \d+ of side\d\.dat, field \w+: checksum 0x\w+, expected", done.err
    )
    assert "restore the shard from a checkpoint" in done.err
    assert "started again" not in done.err
    assert node_starts(shell) == 1
    done = shell.run("verify", STATE, "--full")
    assert (done.process.returncode, "DAMAGED page" in done.out) == (5, True), done.out

    shutil.rmtree(shell.directory / STATE)
    restored = restore(shell)
    said = re.search(r"^weights digest .*$", exported.out, re.MULTILINE)
    assert said is not None
    assert said[0] in restored.out
    shell.succeed("verify", STATE, "--full")
    done = shell.run(*FLAGS, "--resume", "train.py", "3")
    assert (done.process.returncode, done.out) == (0, "done 2\n"), done.err


def restore(shell: Terminal) -> Command:
    """Run the command of docs/storage.md."""
    found = re.search(
        r"^<!-- test: restore (.*)=(.*) -->\n```sh\n(luwu .*)\n```$", PAGE.read_text(), re.MULTILINE
    )
    assert found is not None
    command = found[3].replace(found[1], found[2])
    done = shell.succeed(*shlex.split(command)[1:])
    return done


@pytest.mark.faults(20)
@pytest.mark.skipif(not tracing.is_installed(), reason="strace is not installed")
@pytest.mark.parametrize("error", ["EIO", pytest.param("ENOSPC", marks=pytest.mark.slow)])
def test_a_flush_that_fails_ends_the_run(shell: Terminal, error: str) -> None:
    """I2, I6. Goal: exit code 5, the file, what the system said and what to do; no second start;
    and the same command with --resume goes on. Method: strace lets one flush fail."""
    running = shell.start(*FLAGS, "train.py", str(DRIVE_STEPS))
    wait_for_step(running, 1)
    processes = json.loads((shell.directory / "luwu-runs/latest/processes.json").read_text())
    (pid,) = [row["pid"] for row in processes["processes"] if row["role"] == "node"]
    strace = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync",
         "-e", f"inject=fdatasync:error={error}:when=4", "-p", str(pid)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert running.wait() == 5, running.err
    strace.wait(timeout=30)
    said = {"EIO": "Input/output error", "ENOSPC": "No space left on device"}[error]
    todo = {"EIO": "Put the disk right", "ENOSPC": "Free some space"}[error]
    assert re.search(rf"node: .*luwu-state.*{said}.*{todo} and start the node again", running.err)
    assert "started again as pid" not in running.err
    assert node_starts(shell) == 1
    said_by_worker = (shell.directory / "luwu-runs/latest/logs/worker-0.log").read_text()
    decided = max(int(step) for step in re.findall(r"^done (\d+)$", said_by_worker, re.MULTILINE))
    for block in (0, 2):  # of the superblock, one copy of each record rots as well
        with (shell.directory / STATE / "meta.dat").open("r+b") as file:
            file.seek(4096 * block + 60)
            file.write(b"rot")
    done = shell.succeed(*FLAGS, "--resume", "train.py", str(decided + 4))
    log = (shell.directory / "luwu-runs/latest/logs/node.log").read_text()
    assert re.search(r'WARNING node.survived text="meta\.dat: 2 of 4 record blocks', log), log
    shell.succeed("verify", STATE, "--full")
    first = re.search(r"^done (\d+)$", done.out, re.MULTILINE)
    assert first is not None
    assert int(first[1]) in (decided + 1, decided + 2)  # the last may be decided and not told


PIPED = 'exec "$0" "$@" > >(cat) 2> >(cat >&2)'
"""A command whose output goes to no file, as on a terminal; it has the number of the shell."""


@pytest.mark.faults(34)
def test_a_full_run_directory_costs_records_alone(shell: Terminal) -> None:
    """I6. Goal: where there is no room any more for logs, events and counters, the run goes on, the
    launcher says so, naming the directory, and it ends with its own code.
    Method: from a step on, launcher, switch and node may write no byte to any file; the state is in
    RAM. Then the script fails, as which the run must end."""
    flags = ("run", "--workers", "1", "--durability", "none", "--transport", "ipc")
    script = ATTACHED.replace("DISTURB", "os.path.exists('fail') and sys.exit(7)")
    attached = 'luwu.attach("generator", generator, per_rank=True)\n'  # which is of the state
    (shell.directory / "train.py").write_text(script.replace(attached, ""))
    program = ["bash", "-c", PIPED, sys.executable, "-m", "luwu"]
    running = shell.start_program(program, [*flags, "train.py", str(DRIVE_STEPS)], {})
    wait_for_step(running, 1)
    run = shell.directory / "luwu-runs/latest"
    rows = json.loads((run / "processes.json").read_text())["processes"]
    pids = [row["pid"] for row in rows if row["role"] != "worker"]
    for pid in [running.process.pid, *pids]:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
    last = max(int(step) for step in re.findall(r"^done (\d+)$", running.out, re.MULTILINE))
    wait_for_step(running, last + 50)
    (shell.directory / "fail").touch()
    assert running.wait() == 4, running.err
    assert "Traceback" not in running.err
    [warning] = re.findall("^WARNING.*", running.err, re.MULTILINE)
    assert f"in {run.resolve()}: File too large" in warning


SMALL_DISK = 'mkdir small && mount -t tmpfs -o size=64k tmpfs small && exec "$0" "$@"'
NO_FILES = 'mkdir here && chmod 500 here && exec "$0" "$@"'
LIMITED = 'ulimit -f 200 && exec "$0" "$@"'
UNPRIVILEGED = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
"""Of root too, as which tests may run."""


@pytest.mark.feature("a place that takes no files: full, without permission, or limited")
@pytest.mark.parametrize(
    ("before", "commands", "flags", "said"),
    [
        pytest.param(
            ("unshare", "-Urm"), SMALL_DISK, ("--run-dir", "small/run", "--state", "state"),
            r"run directory .*small/run takes no records .*No space left.* Free some space.*\nE502",
            id="a-full-run-directory",
        ),
        pytest.param(
            UNPRIVILEGED if os.geteuid() == 0 else (), NO_FILES, ("--state", "here/state"),
            r"here/state could not be made: .*Permission denied.* \(uid \d+\) may not do it: "
            r"change the owner or mode of the place \(chown, chmod\), or name another.*\nE514",
            id="no-permission",
        ),
        pytest.param(
            (), LIMITED, ("--state", "state"),
            r"No file may be larger than \d+ bytes here: raise this limit \(ulimit -f\).*\nE514",
            id="a-limit-of-file-sizes",
        ),
    ],
)  # fmt: skip
def test_what_takes_no_files_is_named(
    shell: Terminal, before: Sequence[str], commands: str, flags: Sequence[str], said: str
) -> None:
    """I6. Goal: the cause and what to do, and not that the disk failed or a worker was lost."""
    tried = [*before, "true"]
    is_there = shutil.which(tried[0]) is not None
    if not is_there or subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip(f"{tried[0]} is not there, or may not do it here")
    program = [*before, "bash", "-c", commands, sys.executable, "-m", "luwu"]
    light = ("-m", "tests.light_job", "--steps", "1")
    running = shell.start_program(program, ["run", "--workers", "1", *flags, *light], {})
    assert running.wait() == 5, running.err
    assert re.search(said, running.err), running.err
    assert "Traceback" not in running.err
