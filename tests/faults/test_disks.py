"""Kinds 19 to 26: what a disk does to the only copy of the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luwu.wire import messages as wire
from tests.faults.scenario import BOTH, STORED, aborts, made_by, run_plan, run_scenario, says
from tests.simulate.faults import DiskFault, PowerCut


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("eio_write", marks=pytest.mark.faults(19)),
        pytest.param("eio_flush", marks=pytest.mark.faults(20)),
        pytest.param("enospc", marks=pytest.mark.faults(21)),
    ],
)
def test_a_disk_fails(kind: str) -> None:
    """I1, P5. Goal: the node ends, in words; started again on a disk that was put right, it goes
    on, and what was decided is whole. Nobody flushes again: what should have been on the disk is
    not known any more."""
    fault = DiskFault(at_ms=0, for_ms=100, who="node 0", kind=kind)
    simulation = run_scenario(says("worker-0", wire.Commit, 1), fault)
    assert simulation.counts["failed by its disk"] == 1
    assert simulation.disks[0].starts == 2
    assert made_by(simulation) == BOTH


@pytest.mark.faults(22)
@pytest.mark.parametrize("kind", [wire.Push, wire.Commit, wire.Pull], ids=lambda k: k.__name__)
def test_power_is_lost(kind: type[wire.Message]) -> None:
    """I1, I2, P2. Goal: of blocks that are old, new or torn the store makes the last decided
    version."""
    cut = PowerCut(at_ms=0, for_ms=50, who="node 0")
    simulation = run_scenario(says("worker-0", kind, 3), cut)
    assert simulation.disks[0].starts == 2
    assert made_by(simulation) == BOTH


@pytest.mark.faults(23)
@pytest.mark.parametrize("kind", ["lost", "misdirected"])
def test_writes_are_lost_or_go_elsewhere(kind: str) -> None:
    """P3, O6. Goal: what a lying device left is noticed when it is read, and never served."""
    lies = [
        DiskFault(at_ms=60 + 40 * number, for_ms=0, who="node 0", kind=kind) for number in range(3)
    ]
    simulation = run_plan(*lies, seed=1)
    assert simulation.counts["failed by its disk"] >= 1


@pytest.mark.faults(24)
def test_a_page_rots() -> None:
    """P3, O6. Goal: a flipped bit is never served, nor trained on: there is a second copy of it, or
    the node ends and says which page."""
    rot = [DiskFault(at_ms=40 * number, for_ms=0, who="node 0", kind="rot") for number in range(12)]
    simulation = run_plan(*rot, options=replace(STORED, steps=12))
    assert simulation.disks[0].version == 12


@pytest.mark.faults(26)
def test_the_disk_stalls() -> None:
    """I6. Goal: a disk that answers nothing for five seconds is waited for; nothing is begun
    again, nobody is taken for lost."""
    stall = DiskFault(at_ms=0, for_ms=5000, who="node 0", kind="stall")
    simulation = run_scenario(says("worker-0", wire.Push, 2), stall)
    assert aborts(simulation) == 0
    assert simulation.world.now_ns > 5 * 10**9
    assert made_by(simulation) == BOTH
