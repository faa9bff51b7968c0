"""A process that stops doing anything: the others stay within their memory, and go on with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.process_memory import private_bytes
from luwu.testing.cluster import Cluster
from tests import kill
from tests.processes.jobs import Outside, light_digest

STEPS = 40
BUDGET_BYTES = 64 * 1024 * 1024
FLAGS = ("--memory-budget", f"{BUDGET_BYTES}B")
GROWTH_BYTES_MAX = BUDGET_BYTES // 10
"""More than a process held while all ran: a tenth of the budget."""


def watch_others(cluster: Cluster, stopped: int, seconds: float) -> dict[str, int]:
    """How much each other process grew at most in so many seconds, in bytes."""
    pids = {
        f"{each.role} {each.rank}": each.pid for each in cluster.processes() if each.pid != stopped
    }
    first = {name: private_bytes(pid) or 0 for name, pid in pids.items()}
    grown = dict.fromkeys(pids, 0)
    end_ns = SYSTEM_CLOCK.now_ns() + int(seconds * 1e9)
    while SYSTEM_CLOCK.now_ns() < end_ns:
        sleep(0.2)
        for name, pid in pids.items():
            grown[name] = max(grown[name], (private_bytes(pid) or 0) - first[name])
    return grown


@pytest.mark.faults(3)
@pytest.mark.faults(8)
@pytest.mark.faults(10)
@pytest.mark.faults(30)
@pytest.mark.parametrize(
    ("role", "rank", "seconds", "transport"),
    [
        pytest.param("worker", 1, 4.0, "shm", marks=pytest.mark.slow),
        ("switch", 0, 4.0, "tcp"),
        pytest.param("worker", 0, 120.0, "tcp", marks=pytest.mark.slow),
        pytest.param("worker", 1, 120.0, "shm", marks=pytest.mark.slow),
        pytest.param("switch", 0, 30.0, "shm", marks=pytest.mark.slow),
        pytest.param("node", 0, 30.0, "tcp", marks=pytest.mark.slow),
    ],
)
def test_sigstop(tmp_path: Path, role: str, rank: int, seconds: float, transport: str) -> None:
    """I3, I5, I6. Goal: nobody grows while a process is stopped, and after SIGCONT the run goes on
    and ends with the digest of plain torch."""
    outside = Outside(tmp_path / "outside")
    with kill.start(
        tmp_path, "stopped", steps=STEPS, restarts=0, outside=outside, transport=transport,
        more_flags=FLAGS,
    ) as cluster:  # fmt: skip
        kill.wait_for_step(cluster, 5)
        pid = cluster.kill(role, rank, signal.SIGSTOP)
        grown = watch_others(cluster, pid, seconds)
        os.kill(pid, signal.SIGCONT)
        assert max(grown.values()) <= GROWTH_BYTES_MAX, grown
        digest = kill.finish(cluster, outside)
    assert digest == light_digest(STEPS)
