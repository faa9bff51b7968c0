"""Faults of a soak: SIGKILL to a process of a run, or a stall of a second, drawn from a seed.

One at a time. After each the run must decide three more steps (one may be decided and not recorded
yet, and what the next needs may have been sent before the fault) or come to its end, within a
limit; only then the next one is due. A violation is a run that does neither, and a step that was
lost, decided again or left out (I1, I2).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import DeadlineError
from luwu.base.foreign import lines_of
from luwu.base.json_file import json_object
from luwu.base.seeds import derive
from luwu.launch.progress import Decided
from luwu.testing.cluster import Cluster

LIMIT_S: Final = 120.0
STALL_NS: Final = 10**9
STEPS_AFTER: Final = 3


@dataclass(frozen=True)
class Fault:
    """One fault, some time after the beginning."""

    is_kill: bool
    role: str
    rank: int
    at_ns: int


@dataclass
class Struck:
    """The outcome of all faults."""

    hits: list[tuple[Fault, int, int]] = field(default_factory=list)
    """Faults that happened, with process and time; the others were due after the run's end."""
    violations: list[str] = field(default_factory=list)


def draw(seed: int, victims: Sequence[tuple[str, int]], count: int, every_ns: int) -> list[Fault]:
    """One fault for each window of time, at a random instant of it. `victims`: role and rank of
    all processes; workers, switches and nodes are hit equally often."""
    random = Random(derive(seed, "soak faults"))
    machines = sorted({role.partition("-")[0] for role, _ in victims})
    faults = []
    for index in range(count):
        machine = random.choice(machines)
        role, rank = random.choice(
            sorted(each for each in victims if each[0].partition("-")[0] == machine)
        )
        at_ns = index * every_ns + random.randrange(every_ns)
        faults.append(Fault(random.random() < 0.5, role, rank, at_ns))
    return faults


def strike(cluster: Cluster, faults: Sequence[Fault], say: Callable[[str], None]) -> Struck:
    """Make the faults in a run. `say` receives a line for each that happened."""
    struck, decided = Struck(), Decided(cluster.run_directory)
    start_ns = SYSTEM_CLOCK.now_ns()
    for fault in faults:
        name = f"{'kill' if fault.is_kill else 'stall'} {fault.role} {fault.rank}"
        try:
            due_ns = start_ns + fault.at_ns
            left_s = max(0, due_ns - SYSTEM_CLOCK.now_ns()) / 1e9
            _until(cluster, due_ns, limit_s=left_s + LIMIT_S)
            pid = cluster.wait_for(fault.role, fault.rank, limit_s=LIMIT_S)
            struck.hits.append((fault, pid, SYSTEM_CLOCK.now_ns()))
            struck_ns = _hit(cluster, fault, pid)
            cluster.wait_for_steps(decided.count() + STEPS_AFTER, limit_s=LIMIT_S)
            waited_s = (SYSTEM_CLOCK.now_ns() - struck_ns) / 1e9
            say(f"fault   {name} (pid {pid}); goes on {waited_s:.2f} s later")
        except DeadlineError as error:
            if cluster.exit_code() != 0:  # None: it does not go on; else it has not ended well
                struck.violations.append(f"{name}: {error}")
            break
    struck.violations += out_of_order(cluster.run_directory.events("node"))
    return struck


def out_of_order(events: Path) -> list[str]:
    """Steps that a node lost over a restart, decided again or left out, of all that it recorded."""
    last: int | None = None
    found = []
    for record in map(json_object, lines_of(events)):
        if record.get("name") == "node.opened" and record["version"] is not None:
            if last is not None and record["version"] < last + 1:
                steps = record["version"]
                found.append(f"step {last} was decided, but the node restarted with {steps} steps")
            last = record["version"] - 1 if record["version"] else None
        elif record.get("name") == "node.step":
            step = record["step"]
            if last is not None and step != last + 1:
                kind = "again" if step <= last else "with steps left out"
                found.append(f"step {step} was decided after step {last}: {kind}")
            last = step
    return found


def _hit(cluster: Cluster, fault: Fault, pid: int) -> int:
    """Make a fault; the time from which the run is free to go on."""
    if fault.is_kill:
        struck_ns = SYSTEM_CLOCK.now_ns()
        _signal(pid, signal.SIGKILL)
        return struck_ns
    _signal(pid, signal.SIGSTOP)
    try:
        _until(cluster, SYSTEM_CLOCK.now_ns() + STALL_NS, limit_s=LIMIT_S)
    finally:
        _signal(pid, signal.SIGCONT)
    return SYSTEM_CLOCK.now_ns()


def _until(cluster: Cluster, at_ns: int, *, limit_s: float) -> None:
    def is_time() -> bool | None:
        return SYSTEM_CLOCK.now_ns() >= at_ns or None

    cluster.until(is_time, "the next fault", limit_s=limit_s)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
