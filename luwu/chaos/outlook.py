"""The expected outcome of each fault, from a run's configuration alone. Pure.

kill node, switch    started again, --restarts times in all; then the run ends
kill node            without --state its weights are lost, and the run ends
kill worker          started again (all of them, where --on-worker-loss is stop), --worker-restarts
                     times; then the run ends, or with drop it goes on while --workers-min are left
stall                waited for until --grace is over; then the run ends
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luwu.base.errors import ConfigError
from luwu.chaos.plan import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The part of a run's configuration that decides."""

    workers: int
    workers_min: int
    restarts: int
    worker_restarts: int
    on_worker_loss: str
    keeps_state: bool
    """True if the node's state outlives its process."""
    grace_ns: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """The expected outcome of a fault."""

    ends: str | None = None
    """Why the run should end with it; None: it should go on."""


def outlooks(faults: Sequence[Fault], rules: Rules, *, expect: str | None) -> list[Outlook]:
    """One for each fault. `expect`: `on` or `end`, where the user knows better.

    Raises: ConfigError if a fault would come after the end of the run.
    """
    found = [Outlook() for _ in faults]
    if expect is None:
        found = _by_rules(faults, rules)
    elif expect == "end" and found:
        found[-1] = Outlook("--expect end is set")
    for number, each in enumerate(found[:-1], start=1):
        if each.ends is not None:
            raise ConfigError(
                f"fault {number} ({faults[number - 1]}) would end the run: {each.ends}; "
                f"{len(faults) - number} more are planned after it. Change that, plan "
                f"{number} faults, or pass --expect on if the run survives it nevertheless"
            )
    return found


def _by_rules(faults: Sequence[Fault], rules: Rules) -> list[Outlook]:
    found = []
    kills = {"worker": 0, "role": 0}
    for fault in faults:
        ends = None
        if fault.kind == "stall":
            if fault.stall_ns >= rules.grace_ns:
                ends = f"--grace is {rules.grace_ns / 1e9:g} s"
        elif fault.machine == "worker":
            kills["worker"] += 1
            lost = max(0, kills["worker"] - rules.worker_restarts)
            if rules.on_worker_loss != "drop" and lost:
                ends = f"--worker-restarts is {rules.worker_restarts}"
            elif rules.workers - lost < rules.workers_min:
                ends = f"--workers-min is {rules.workers_min}"
        else:
            kills["role"] += 1
            if kills["role"] > rules.restarts:
                ends = f"--restarts is {rules.restarts}"
            if fault.machine == "node" and not rules.keeps_state:
                ends = "the node keeps its state in RAM; give --state"
        found.append(Outlook(ends))
    return found
