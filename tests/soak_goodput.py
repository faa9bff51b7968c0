"""How much of its work a run does under faults, and what the pauses after them are made of.

Goodput is what torchft publishes: steps decided in a time with faults / steps that the same run
decides without any in as long. Two workers with torch, steps of about 0.6 s, a worker, the switch
and the node killed in turn, each at a random instant of its window. The parts of a pause, in
medians, from the run's records:

    notice    the kill -> the launcher starts the process again   `launcher.log`
    start     -> the new process opens its events                 `clock`
    join      -> workers learn that the step is lost              `worker.aborted`
    replay    -> the step is decided                              `node.step`

`lost` is the time by which that step is later than without the fault.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import cycle, pairwise
from pathlib import Path
from random import Random
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK, sleep, unix_ns
from luwu.base.foreign import lines_of
from luwu.base.json_file import json_object
from luwu.base.seeds import derive
from luwu.launch.processes.run_directory import RunDirectory
from tests import kill
from tests.processes.jobs import SMALL, Outside
from tests.soak_faults import Fault, strike

PARTS: Final = ("notice", "start", "join", "replay", "lost")
STEPS, RESTARTS = str(10**6), 10**5
SCRIPT: Final = (
    "-m", "tests.soak_worker", "--arm", "luwu", "--steps", STEPS, "--data", __file__, *SMALL,
    "--compute-ms", "100",
)  # fmt: skip
"""Three units, each forward and backward: 0.6 s a step."""
CALM_S: Final = 30.0
SINGLE: Final = (("switch", 0), ("node", 0))


def in_turn(seed: int, count: int, every_ns: int) -> list[Fault]:
    """A worker, the switch and the node in turn, one in each window of time."""
    random = Random(derive(seed, "goodput"))
    victims = cycle([("worker", 0), *SINGLE, ("worker", 1), *SINGLE])
    return [
        Fault(True, *next(victims), index * every_ns + random.randrange(every_ns))
        for index in range(count)
    ]


def goodput(minutes: float, every_ns: int, seed: int) -> int:
    """Print goodput and parts of a run; the exit code."""
    faults = in_turn(seed, max(1, round(minutes * 60e9 / every_ns)), every_ns)
    flags = ("--on-worker-loss", "wait", "--worker-restarts", str(RESTARTS))
    with tempfile.TemporaryDirectory(prefix="luwu-goodput-") as name, kill.start(
        Path(name), "goodput", steps=0, restarts=RESTARTS, script=SCRIPT, more_flags=flags,
        outside=Outside(Path(name, "tmp")),
    ) as cluster:  # fmt: skip
        cluster.wait_for_steps(5, limit_s=120)
        calm_ns = SYSTEM_CLOCK.now_ns()
        sleep(CALM_S)
        begin_ns = SYSTEM_CLOCK.now_ns()
        struck = strike(cluster, faults, lambda text: print(text, flush=True))
        end_ns = begin_ns + len(faults) * every_ns
        sleep(max(0, end_ns - SYSTEM_CLOCK.now_ns()) / 1e9)
        steps_ns = list(times_of(cluster.run_directory.events("node"), "node.step"))
        rows = parts_of(cluster.run_directory, struck.hits, steps_ns)
    calm = [at_ns for at_ns in steps_ns if calm_ns <= at_ns < begin_ns]
    step_s = (calm[-1] - calm[0]) / 1e9 / (len(calm) - 1)
    made = sum(begin_ns <= at_ns < end_ns for at_ns in steps_ns)
    all_s, count = (end_ns - begin_ns) / 1e9, len(struck.hits)
    slow_s = [
        (b - a) / 1e9 - step_s for a, b in pairwise(steps_ns)
        if begin_ns <= a < b < end_ns and b - a > 2e9 * step_s
        and not any(a <= at_ns < b for _, _, at_ns in struck.hits)
    ]  # fmt: skip
    lost_s = all_s - made * step_s - sum(slow_s)
    print(f"{'':8}{'faults':>7}" + "".join(f"{part + ' (s)':>12}" for part in PARTS))
    for role, found in rows.items():
        medians = map(statistics.median, zip(*found, strict=True))
        print(f"{role:8}{len(found):7}" + "".join(f"{each:12.2f}" for each in medians))
    print(
        f"goodput {100 * made * step_s / all_s:.1f} %: {made} steps of {step_s:.3f} s in "
        f"{all_s:.0f} s with {count} faults, {all_s / step_s:.0f} without; "
        f"{lost_s / count:.2f} s lost with each, and {sum(slow_s):.0f} s in {len(slow_s)} steps "
        "that took more than twice that time without a fault"
    )
    for text in struck.violations:
        print(f"VIOLATION: {text}")
    return 1 if struck.violations else 0


def parts_of(
    run: RunDirectory, hits: Sequence[tuple[Fault, int, int]], steps_ns: Sequence[int]
) -> dict[str, list[list[float]]]:
    """The parts of each pause in seconds, by role; a part that was not needed is 0."""
    workers = run.path.glob("events/worker-*.jsonl")
    lost_ns = sorted(at for worker in workers for at in times_of(worker, "worker.aborted"))
    step_s = statistics.median(b - a for a, b in pairwise(steps_ns)) / 1e9
    rows: dict[str, list[list[float]]] = defaultdict(list)
    for fault, pid, at_ns in hits:
        name = f"worker-{fault.rank}" if fault.role == "worker" else fault.role
        times = [at_ns, noticed_ns(run.log("launcher"), pid)]
        for found in (times_of(run.events(name), "clock"), lost_ns, steps_ns):
            times.append(next((each for each in found if each > times[-1]), times[-1]))
        before_ns = max(each for each in steps_ns if each < at_ns)
        seconds = [(b - a) / 1e9 for a, b in pairwise(times)]
        rows[fault.role].append([*seconds, (times[-1] - before_ns) / 1e9 - step_s])
    return rows


def times_of(events: Path, name: str) -> Iterator[int]:
    """The times of all records of a name."""
    for record in map(json_object, lines_of(events)):
        if record.get("name") == name:
            yield record.get("at_ns") or record["monotonic_ns"]


def noticed_ns(log: Path, pid: int) -> int:
    """When the launcher reported that a process had ended, by our monotonic clock."""
    ended = re.compile(rf"\(pid {pid}\) (was lost|ended)")
    line = next(line for line in log.read_text().splitlines() if ended.search(line))
    today = datetime.now().date().isoformat()
    at_s = datetime.fromisoformat(f"{today} {line.split()[0]}").timestamp()
    return int(at_s * 1e9) - unix_ns() + SYSTEM_CLOCK.now_ns()
