"""Kinds 3, 8, 10, 27, 29 and 30: peers that are out of date, that speak nonsense, that hang."""

from __future__ import annotations

import pytest

from luwu.wire import messages as wire
from tests.faults.scenario import BOTH, aborts, made_by, run_plan, run_scenario, says
from tests.simulate.faults import Hostile, Stall, Zombie


@pytest.mark.parametrize(
    "who",
    [
        pytest.param("worker 1", marks=pytest.mark.faults(27)),
        pytest.param("switch 0", marks=pytest.mark.faults(8)),
        pytest.param("node 0", marks=pytest.mark.faults(27)),
    ],
)
def test_an_earlier_start_speaks(who: str) -> None:
    """I5. Goal: of two starts of one member the later one counts, whatever the other still says."""
    zombie = Zombie(at_ms=0, for_ms=200, who=who)
    simulation = run_scenario(says("worker-1", wire.Push, 2), zombie)
    assert made_by(simulation) == BOTH


@pytest.mark.faults(29)
@pytest.mark.parametrize("who", ["switch 0", "node 0"])
@pytest.mark.parametrize("kind", ["stranger", "replay", "stale", "absurd"])
def test_messages_are_malformed(who: str, kind: str) -> None:
    """I5. Goal: what strangers say, again, too late or out of all bounds changes nothing."""
    attacks = [Hostile(at_ms=at_ms, who=who, kind=kind, count=30) for at_ms in (60, 120, 180)]
    assert made_by(run_plan(*attacks)) == BOTH


@pytest.mark.parametrize(
    "who",
    [
        pytest.param("worker 0", marks=[pytest.mark.faults(3), pytest.mark.faults(30)]),
        pytest.param("switch 0", marks=pytest.mark.faults(30)),
        pytest.param("node 0", marks=pytest.mark.faults(10)),
    ],
)
def test_a_peer_hangs(who: str) -> None:
    """O5, I6. Goal: whoever sends to it holds no more than its limits (the accounts of the
    simulation say so at every payload), nothing is begun again, and all goes on when it reads."""
    simulation = run_scenario(says("worker-1", wire.Push, 2), Stall(at_ms=0, for_ms=4000, who=who))
    assert aborts(simulation) == 0
    assert simulation.world.now_ns > 4 * 10**9
    assert made_by(simulation) == BOTH
