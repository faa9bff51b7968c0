"""A simulated job to which one thing happens, at a chosen message: what a scenario is made of.

The world is that of `tests/simulate`: the real cores and the real page store, virtual time, and the
oracles O1 to O6, which end a scenario with an AssertionError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from luwu.wire.messages import Message
from tests.simulate.faults import Fault
from tests.simulate.history import Simulation, run_history
from tests.simulate.plan import History, Options
from tests.simulate.world import started_as

Moment = Callable[[str, str, Message], bool]
"""(sender, receiver, message) -> whether the fault strikes now."""

STORED = Options(stored=True, steps=6)
"""Two workers, one switch, one node on a simulated device."""
BOTH = [0b11] * STORED.steps
"""`made_by` of a job whose every step was made by both."""


def says(sender: str, kind: type[Message], step: int) -> Moment:
    """When a process sends the first message of a type in a step."""

    def look(who: str, receiver: str, message: Message) -> bool:
        at = getattr(message, "step", None)
        return started_as(who) == sender and isinstance(message, kind) and at == step

    return look


def run_scenario(moment: Moment, fault: Fault, options: Options = STORED) -> Simulation:
    """Run a job; let the fault strike the first time that the moment comes."""

    class Scripted(Simulation):
        def __init__(self, history: History) -> None:
            super().__init__(history)
            self._has_struck = False
            hear = self.world.eavesdropper

            def heard(sender: str, receiver: str, message: Message, payload: Any) -> None:
                if hear is not None:
                    hear(sender, receiver, message, payload)
                if not self._has_struck and moment(sender, receiver, message):
                    self._has_struck = True
                    self.world.at(0, lambda: self._strike(fault))

            self.world.eavesdropper = heard

    simulation = run_history(History(0, options, ()), Scripted)
    assert simulation.counts[type(fault).__name__] == 1, "the moment never came"
    return simulation


def run_plan(*faults: Fault, options: Options = STORED, seed: int = 0) -> Simulation:
    """Run a job to which things happen at their times."""
    simulation = run_history(History(seed, options, faults))
    assert sum(simulation.counts.get(type(fault).__name__, 0) > 0 for fault in faults)
    return simulation


def aborts(simulation: Simulation) -> int:
    """How often workers were told to begin a step again."""
    return sum(worker.aborts_count for worker in simulation.workers)


def made_by(simulation: Simulation) -> list[int]:
    """Of each version from the first, the ranks that made it, as a bitmap."""
    disk = simulation.disks[0]
    return [disk.ledger[version] for version in range(1, disk.version + 1)]
