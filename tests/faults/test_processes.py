"""Kinds 1 to 11: processes that die, hang, come back, come and go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from luwu.wire import messages as wire
from tests.faults.scenario import BOTH, STORED, aborts, made_by, run_scenario, says
from tests.helpers.local_job import Job, Worker, cluster_for, plain_of
from tests.simulate.faults import Blackout, Crash, DieInStore

AWAY_MS = 50


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(wire.Push, marks=pytest.mark.faults(1)),
        pytest.param(wire.Commit, marks=pytest.mark.faults(2)),
    ],
    ids=lambda kind: kind.__name__,
)
def test_a_worker_is_killed(kind: type[wire.Message]) -> None:
    """I1, I3, I6. Goal: the others wait for its successor, and what it pushed counts once: as it
    was, or, if it had not pushed all, the step is made again as a whole."""
    crash = Crash(at_ms=0, for_ms=AWAY_MS, who="worker 1")
    simulation = run_scenario(says("worker-1", kind, 2), crash)
    assert simulation.workers[1].start == 1
    assert aborts(simulation) > 0 or kind is wire.Commit
    assert made_by(simulation) == BOTH


def change_workers(tmp_path: Path, before: int, after: int) -> None:
    """Train two steps, and two more with another number of workers; see whose weights they are."""
    job, state = Job(), tmp_path / "state"
    first, then = replace(job, world_size=before), replace(job, world_size=after)
    with cluster_for(first, tmp_path, state=state) as cluster:
        cluster.run(Worker(first, stop_at=2))
    with cluster_for(then, tmp_path, state=state, resume=True) as cluster:
        assert [seen.first_step for seen in cluster.run(Worker(then))] == [2] * after
        ranks = [range(before)] * 2 + [range(after)] * 2
        assert cluster.weights_digest() == plain_of(job, ranks).digest


@pytest.mark.faults(5)
def test_workers_are_added(tmp_path: Path) -> None:
    """I1, I3. Goal: a job goes on with more workers than it began with; each step is the mean over
    those it had. Method: real shells, sockets and store, and a plain loop over torch.optim."""
    change_workers(tmp_path, 2, 3)


@pytest.mark.faults(6)
def test_a_job_is_resumed_with_fewer_workers(tmp_path: Path) -> None:
    """I1, I3. Goal: as kind 5, with one worker where there were three."""
    change_workers(tmp_path, 3, 1)


@pytest.mark.faults(7)
@pytest.mark.parametrize("kind", [wire.Push, wire.Commit, wire.Decided], ids=lambda k: k.__name__)
def test_the_switch_is_killed(kind: type[wire.Message]) -> None:
    """I2, I3. Goal: its successor knows nothing, asks, and no gradient is added twice."""
    sender = "node" if kind is wire.Decided else "worker-0"
    crash = Crash(at_ms=0, for_ms=AWAY_MS, who="switch 0")
    simulation = run_scenario(says(sender, kind, 2), crash)
    assert made_by(simulation) == BOTH


@pytest.mark.faults(9)
@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power cut"])
@pytest.mark.parametrize("failpoints", range(0, 24, 3))
def test_the_node_is_killed_at_any_call_of_its_store(failpoints: int, power_cut: bool) -> None:
    """I1, I2. Goal: no decided step is lost, wherever it ends. (At every system call, in a real
    process: `python -m tests.syscalls`.)"""
    death = DieInStore(
        at_ms=0, for_ms=AWAY_MS, who="node 0", failpoints=failpoints, power_cut=power_cut
    )
    simulation = run_scenario(says("worker-0", wire.Commit, 1), death)
    assert simulation.disks[0].starts == 2


@pytest.mark.faults(11)
def test_all_processes_are_killed_at_once() -> None:
    """I1, I2. Goal: after a blackout the job goes on with the step that no one had decided."""
    blackout = Blackout(at_ms=0, for_ms=AWAY_MS)
    simulation = run_scenario(says("worker-0", wire.Push, 3), blackout, STORED)
    assert [worker.start for worker in simulation.workers] == [1, 1]
    assert simulation.disks[0].starts == 2
