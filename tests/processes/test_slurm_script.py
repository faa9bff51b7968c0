"""docs/deploy/slurm.sbatch as it is, with stand-ins for Slurm's programs that start real tasks."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import pytest

from luwu.base.socket_directory import sweep
from luwu.base.tree import tree_of_hosts
from luwu.launch.processes.children import command_of
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.starting import first_step
from luwu.testing.leftovers import until_empty
from tests.helpers.local_job import Job, plain
from tests.house.test_deploy import DEPLOY
from tests.processes.commands import Command, Terminal, environ_of, summary

STEPS = 8
STAND_INS = {
    "scontrol": r'printf "127.0.0.%d\n" 1 2 3',
    "luwu": f'exec {sys.executable} -m luwu "$@"',
    "srun": """
        while [ "${1#--}" != "$1" ]; do
            case $1 in --ntasks=*) ntasks=${1#*=} ;; esac
            shift
        done
        for ((task = 0; task < ntasks; task++)); do SLURM_PROCID=$task "$@" & tasks+=($!); done
        for _ in "${tasks[@]}"; do
            wait -n || { code=$?; kill "${tasks[@]}"; wait; exit $code; }
        done
    """,
}
"""Of a job of three hosts. `srun` ends all its tasks when one fails."""


def start(shell: Terminal, restart: int) -> Command:
    """The job, for the first time or again: two hosts of two workers."""
    programs = shell.directory / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    environ = {
        "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "h[1-3]",
        "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restart),
        "SLURM_SUBMIT_DIR": str(shell.directory), "WORKERS_PER_HOST": "2",
    }  # fmt: skip
    job = ["-m", "tests.light_job", "--steps", str(STEPS), "--compute-ms", "360"]
    return shell.start_program(["bash", str(DEPLOY / "slurm.sbatch")], job, environ)


def end(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to all; the end of one may have ended another."""
    assert pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.slow
@pytest.mark.feature("trees of switches")
@pytest.mark.feature("a host of workers that dies and comes back")
@pytest.mark.faults(4)
@pytest.mark.timeout(300)
def test_a_lost_host_requeues_the_job(shell: Terminal) -> None:
    """I1, I3, I8. Goal: the script gives each host its switch; when a host is killed the job ends,
    and requeued it goes on to the weights of one that was not disturbed. Method: SIGKILL to all of
    one task; the end that Slurm makes of the others; the script again."""
    first = start(shell, 0)
    run = shell.directory / "luwu-runs" / "slurm-7-0"
    first.wait_for(" step=2 ", of=run / "workers-0" / "logs" / "worker-0.log")
    assert (run / "workers-1" / "logs" / "switch-host-1.log").exists()

    def is_lost(pid: int) -> bool:
        mark = environ_of(pid).get("LUWU_RUN_ID", "")
        return mark.startswith("workers-1-") or "/slurm-7-0/workers-1 " in command_of(pid)

    end([pid for pid in shell.processes() if is_lost(pid)], signal.SIGKILL)
    assert first.wait() == 128 + signal.SIGKILL, first.err
    end(shell.processes(), signal.SIGTERM)
    assert until_empty(lambda: [str(pid) for pid in shell.processes()], 10.0) == []
    sweep(shell.temporary, young_ns=0)
    again = start(shell, 1)
    assert again.wait() == 0, again.err
    run = shell.directory / "luwu-runs" / "slurm-7-1"
    assert first_step(RunDirectory(run))
    expected = plain(Job(world_size=4, steps=STEPS, tree=tree_of_hosts(4, 2)))
    assert summary(run)["weights_digest"] == expected.digest
