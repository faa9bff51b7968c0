"""Ranks that are lost are left out of the next attempts, and count again when they are back.

I1, I3: what is decided is the training of the ranks that the ledger names, step by step, and of no
other (the oracles replay it); I6: whoever dies, the others go on.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulate.faults import Crash, Stall
from tests.simulate.history import run_history
from tests.simulate.plan import HEALED_MS, History, Options

OPTIONS = Options(world_size=3, steps=5, drops=True)


@pytest.mark.faults(6)
@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize("rank", range(3))
def test_the_others_go_on(rank: int, update: str) -> None:
    """I6. Goal: a rank that dies is left out after a while, rank 0 as well, also where every step
    waits for what each rank keeps beside it."""
    options = replace(OPTIONS, update=update, keeps=True)
    death = Crash(at_ms=90, for_ms=2 * HEALED_MS, who=f"worker {rank}")
    ledger = run_history(History(rank, options, (death,))).disks[0].ledger
    made_by = [ledger[version] for version in range(1, 6)]
    assert made_by[0] == 0b111
    assert made_by[-1] == 0b111 & ~(1 << rank)


@pytest.mark.faults(3)
@pytest.mark.faults(4)
@pytest.mark.parametrize("kind", [Crash, Stall])
def test_a_rank_that_comes_back_counts_again(kind: type[Crash | Stall]) -> None:
    """I1, I6. Goal: a rank that is away, dead or hung, for longer than the patience is left out of
    some steps and in the last ones."""
    away = kind(at_ms=70, for_ms=600, who="worker 1")
    options = replace(OPTIONS, steps=30)
    ledger = run_history(History(0, options, (away,))).disks[0].ledger
    made_by = [ledger[version] for version in range(1, 31)]
    assert 0b101 in made_by
    assert made_by[-1] == 0b111


@pytest.mark.faults(5)
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("optimizer_nodes", [1, 2])
def test_a_rank_that_starts_late(optimizer_nodes: int, grows: bool) -> None:
    """I1, I6. Goal: the job waits for a rank that never came, or begins without it and counts it
    from when it is there."""
    late = Crash(at_ms=0, for_ms=1500, who="worker 2")
    options = replace(OPTIONS, steps=60, grows=grows, optimizer_nodes=optimizer_nodes)
    ledger = run_history(History(0, options, (late,))).disks[0].ledger
    made_by = [ledger[version] for version in range(1, 61)]
    assert made_by[0] == (0b011 if grows else 0b111)
    assert made_by[-1] == 0b111


def test_too_few_are_waited_for() -> None:
    """I6. Goal: with fewer ranks than the least, the job waits until one is back."""
    options = replace(OPTIONS, workers_min=3)
    away = Crash(at_ms=70, for_ms=3000, who="worker 1")
    simulation = run_history(History(0, options, (away,)))
    assert set(simulation.disks[0].ledger.values()) == {0b111}
    assert simulation.world.now_ns > 3 * 10**9
