"""What grows with the number of workers, and what grows with time?

Metric:   for 1 to 16 workers of a tiny model: seconds of an exchange (push, sum, update, pull), and
          payload bytes a step at the node, which a switch must keep from growing; memory by role
          (RssAnon + RssShmem). Then, over 500 steps of one job, the slope of each role's memory.
Checked:  the weights, bit for bit, as `benchmarks.exchange` does.
Left out: compute, disk (durability none); torch's modules in the workers; header bytes are given
          beside the claims, the node does not count messages.

More workers than cores share them, so seconds grow with the workers whatever the network does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.exchange_arms import LuwuArm
from benchmarks.exchange_model import Job
from benchmarks.harness import Row, say
from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.errors import DeadlineError, LuwuError
from luwu.base.json_file import read_json
from luwu.base.process_memory import private_bytes

WARM_UPS = 3
STEADY_WORKERS = 2
SAMPLE_EVERY = 10
SETTLING_SHARE = 0.2
"""Of the steady steps: not part of the slope, because buffers are still being made."""
ENDING_S = 30.0
MEANINGS = {
    "node_bytes_spread": "(max - min) / min of payload bytes a step at the node, over all numbers "
    "of workers; less is better",
    "memory_slope_bytes_per_100_steps": "of the role that grows most, by least squares; less is "
    "better",
}


@dataclass(slots=True)
class Seen:
    """What one job left."""

    memory_bytes: dict[str, int]
    node: dict[str, Any]
    steps: int

    @property
    def node_bytes(self) -> float:
        """Payload into and out of the node for one step; weights are pulled once before them."""
        links = self.node["network_bytes"]
        found: float = links["into_node"] / self.steps + links["out_of_node"] / (self.steps + 1)
        return found


def roles_memory(arm: LuwuArm) -> dict[str, int]:
    """Memory of node, switch and workers now, by name."""
    pids = {member.name.replace("luwu", "worker"): member.pid for member in arm.crew.members}
    pids |= {entry.role: entry.pid for entry in arm.network.supervisor.run.read_processes()}
    found = {name: private_bytes(pid) for name, pid in sorted(pids.items())}
    return {name: count for name, count in found.items() if count is not None}


def run_job(job: Job, steps: int, seen: dict[int, Seen]) -> list[float]:
    """One job from start to end; seconds of its steps."""
    say(f"{job.workers} workers")
    with LuwuArm(job, transport="auto", switch=True) as arm:
        for _ in range(WARM_UPS):
            arm.step()
        seconds = [arm.step() for _ in range(steps)]
        memory = roles_memory(arm)
        arm.check()
        arm.leave()
        node = node_summary(arm)
    seen[job.workers] = Seen(memory_bytes=memory, node=node, steps=steps + WARM_UPS)
    return seconds


def node_summary(arm: LuwuArm) -> dict[str, Any]:
    """What the node wrote at its end, once it has ended."""
    end_ns = SYSTEM_CLOCK.now_ns() + int(ENDING_S * 1e9)
    supervisor = arm.network.supervisor
    while not supervisor.roles_done:
        if SYSTEM_CLOCK.now_ns() > end_ns:
            raise DeadlineError(f"node and switch still run {ENDING_S:.0f} s after the workers")
        supervisor.poll()
        sleep(0.02)
    found: dict[str, Any] = read_json(supervisor.run.result("node.json")) or {}
    return found


def steady(job: Job, steps: int) -> tuple[list[float], dict[str, float]]:
    """Seconds of many steps, and each role's slope in bytes per 100 steps."""
    say(f"{steps} steps of {job.workers} workers")
    seconds: list[float] = []
    samples: list[tuple[int, dict[str, int]]] = []
    with LuwuArm(job, transport="auto", switch=True) as arm:
        for number in range(steps):
            seconds.append(arm.step())
            if number % SAMPLE_EVERY == 0 and number >= SETTLING_SHARE * steps:
                samples.append((number, roles_memory(arm)))
        arm.check()
        arm.leave()
    numbers = [number for number, _ in samples]
    slopes = {}
    for role in samples[0][1]:
        values = [found[role] for _, found in samples]
        slopes[role] = float(np.polyfit(numbers, values, 1)[0]) * 100
    return seconds, slopes


def main() -> int:
    """Run both parts."""
    parser = harness.flags("scale", __doc__ or "")
    parser.add_argument("--workers", type=harness.counts, metavar="N,M", help="1,2,4,8,16")
    parser.add_argument("--params", type=harness.parse_count, default=1_000_000, metavar="N")
    parser.add_argument("--steps", type=harness.parse_count, metavar="N", help="steady ones: 500")
    try:
        return _run(parser.parse_args())
    except LuwuError as error:
        say(f"scale: {error}")
        return error.exit_code


def _run(arguments: argparse.Namespace) -> int:
    smoke = arguments.smoke
    workers = arguments.workers or ([1, 2] if smoke else [1, 2, 4, 8, 16])
    steps, many = (2, 40) if smoke else (20, 500)
    many = arguments.steps or many
    params = 200_000 if smoke else arguments.params
    seen: dict[int, Seen] = {}
    arms: dict[str, Callable[[], list[float]]] = {
        str(count): partial(run_job, Job(params=params, workers=count), steps, seen)
        for count in workers
    }
    seconds = harness.interleave(arms, arguments.repeats or (1 if smoke else 3))
    rows = [_row(params, found, seconds[str(count)], count) for count, found in seen.items()]
    steady_seconds, slopes = steady(Job(params=params, workers=STEADY_WORKERS), many)
    rows.append(
        harness.row(
            "steady", "luwu", steady_seconds, workers=STEADY_WORKERS, dtype="float32", switch=True,
            steps=many, memory_slope_bytes_per_100_steps=slopes,
        )
    )  # fmt: skip
    node_bytes = [found.node_bytes for found in seen.values()]
    claims = {
        "node_bytes_spread": (max(node_bytes) - min(node_bytes)) / min(node_bytes),
        "memory_slope_bytes_per_100_steps": max(slopes.values()),
    }
    _show(rows[:-1], slopes)
    result = harness.document("scale", rows, claims, claims_meaning=MEANINGS, smoke=smoke)
    harness.write(arguments.json, result)
    return 0


def _row(params: int, seen: Seen, seconds: list[float], workers: int) -> Row:
    memory = seen.memory_bytes
    return harness.row(
        harness.format_count(params), "luwu", seconds, nbytes=seen.node_bytes, workers=workers,
        dtype="float32", switch=True, node_bytes_per_step=seen.node_bytes,
        node_header_bytes_per_step=seen.node["network_bytes"]["headers"] / seen.steps,
        node_memory_bytes=memory["node"], switch_memory_bytes=memory["switch"],
        worker_memory_bytes=max(n for role, n in memory.items() if role.startswith("worker")),
    )  # fmt: skip


def _show(rows: list[Row], slopes: dict[str, float]) -> None:
    lines = [
        (
            each["workers"],
            f"{each['seconds_median'] * 1e3:.1f}",
            f"{each['seconds_spread']:.0%}",
            f"{each['node_bytes_per_step'] / 1e6:.3f}",
            f"{each['node_header_bytes_per_step'] / 1e3:.2f}",
            *(f"{each[f'{role}_memory_bytes'] / 1e6:.0f}" for role in ("node", "switch", "worker")),
        )
        for each in sorted(rows, key=lambda row: int(row["workers"]))
    ]
    harness.print_table(
        ("workers", "ms a step", "spread", "MB at node", "kB headers", "node MB", "switch MB",
         "worker MB"), lines,
    )  # fmt: skip
    for role, slope in slopes.items():
        say(f"memory of {role}: {slope / 1e3:+.1f} kB per 100 steps")


if __name__ == "__main__":
    raise SystemExit(main())
