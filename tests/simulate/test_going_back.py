"""Histories in which the state of the nodes comes back older than what was announced."""

from __future__ import annotations

import pytest

from tests.simulate.faults import Crash, GoBack
from tests.simulate.history import Simulation, run_history
from tests.simulate.plan import History, Options
from tests.simulate.seeds import seeds

AT_MS, FOR_MS = 120, 150


def run(seed: int, *faults: Crash, **options: object) -> Simulation:
    """A history whose state goes back by some steps; with other faults."""
    known = Options(steps=12, **options)  # type: ignore[arg-type]
    back = GoBack(at_ms=AT_MS, for_ms=FOR_MS)
    return run_history(History(seed, known, (back, *faults)))


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize("optimizer_nodes", [1, 2])
@pytest.mark.parametrize("stored", [False, True])
def test_a_node_refuses_to_make_decided_steps_again(
    seed: int, optimizer_nodes: int, stored: bool
) -> None:
    """I2, O1. Goal: the switch was told of later steps, so the node ends, and names both steps; of
    several, the switch says it to them and to the workers at once. Method: all nodes are killed and
    come back with a copy of the state that is some steps older."""
    simulation = run(seed, optimizer_nodes=optimizer_nodes, stored=stored)
    assert simulation.is_refused
    texts = [node.given_up for node in simulation.nodes if node.given_up]
    if optimizer_nodes > 1:
        texts += [str(each.refused) for each in simulation.workers if each.refused_older]
    known = max(switch.core.outbox.step for switch in simulation.switches.values())
    found = simulation.disks[0].version
    assert any(
        f"ends with step {found - 1}, but step {known - 1} was announced" in text for text in texts
    ), texts
    assert all("--resume" in text for text in texts)


@pytest.mark.parametrize("seed", seeds(8))
def test_a_switch_that_was_started_again_hears_it_of_its_workers(seed: int) -> None:
    """I2, O1. Goal: where nobody but the workers knows of the lost steps, each of them is refused,
    in words. Method: the switch is killed together with the node."""
    simulation = run(seed, Crash(at_ms=AT_MS + FOR_MS, for_ms=10, who="switch 0"))
    assert simulation.is_refused
    refused = [worker.refused for worker in simulation.workers if worker.refused_older]
    assert refused
    assert all("was announced as decided" in str(text) for text in refused)
