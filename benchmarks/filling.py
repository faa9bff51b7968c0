"""A lost optimizer node is filled while training goes on: how long does that take, and cost?

A small GPT, two nodes that hold the same pages. One is killed with its directory; its successor is
filled by the other. Each node's disk is emulated in the first case: steps are limited by it. With
--large the state is 2 GB, and each node's link is emulated too.

Metric:   seconds from the first page to the last, over bytes of the state / `--fill-rate`; a step
          meanwhile, over a step before the loss
Ceiling:  filling 1.0 of the rate; a step 1 / (1 - s) where the disk limits it and filling may use
          the share s of its rate, else 1.0
Bound:    1.4; 1.2 of the ceiling
Checked:  the weights of a quiet run with one node; both directories hold them, verified in full
Left out: nodes on several hosts
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from benchmarks.harness import Row, say
from benchmarks.training import Training, TrainingRuns, temporary_directory
from luwu.base.errors import LuwuError
from luwu.launch.processes.run_directory import RunDirectory
from luwu.testing.cluster import Cluster
from switch_emu.store.striped import left_out_nodes
from switch_emu.store.verify import verify_state

JOB: Final = Training(layers=4, width=384, context=32, batch=1, workers=2, steps=60)
"""7.3 M parameters: 87 MB of state on each node."""
SMOKE_JOB: Final = Training(layers=1, width=64, context=8, batch=1, workers=2, steps=40)
LOST_AT: Final = 8
"""Decided steps before the loss."""
NODES: Final = {"optimizer_nodes": "2", "replicas": "2", "chunk": "128KiB", "restarts": "1"}
MEANINGS: Final = {
    "fill_over_rate": "seconds of filling / (bytes / rate), the worst case; at most 1.4",
    "step_over_ceiling": "a step while filling / (a step before / (1 - s)), the worst case; 1.2",
}


@dataclass(frozen=True)
class Case:
    """A job whose steps are limited by its disks or by compute, and a rate of filling."""

    name: str
    fill_mb_per_s: float
    disk_mb_per_s: float | None
    compute_ms: float
    link_mb_per_s: float | None = None

    @property
    def share(self) -> float:
        """The part of the disk's rate that filling may use; 0 where the disk does not limit."""
        return 0.0 if self.disk_mb_per_s is None else self.fill_mb_per_s / self.disk_mb_per_s

    @property
    def flags(self) -> dict[str, str]:
        """Flags of `luwu run`."""
        found = {
            "durability": "process", "memory_budget": "128MiB",
            "fill_rate": f"{self.fill_mb_per_s}MB/s",
        }  # fmt: skip
        if self.disk_mb_per_s is not None:
            found["disk_rate"] = f"{self.disk_mb_per_s}MB/s"
        if self.link_mb_per_s is not None:
            found["link"] = f"node={self.link_mb_per_s}MB/s"
        return found


CASES: Final = (Case("the disk limits", 20.0, 200.0, 0.0), Case("compute limits", 10.0, None, 40.0))
LARGE_JOB: Final = Training(layers=12, width=1088, context=32, batch=1, workers=2, steps=24)
"""171 M parameters: 2.1 GB of state on each node."""
LARGE_CASES: Final = (
    Case("2 GB, the disk limits", 40.0, 400.0, 0.0, 400.0),
    Case("2 GB, compute limits", 40.0, None, 300.0, 400.0),
)


def main() -> int:
    """Run the program; the exit code."""
    parser = harness.flags("filling", __doc__ or "")
    parser.add_argument("--large", action="store_true", help="2 GB of state; 15 minutes")
    arguments = parser.parse_args()
    with temporary_directory() as name:
        rows = measure(Path(name), arguments)
    claims = {
        "fill_over_rate": max(row["fill_over_rate"] for row in rows),
        "step_over_ceiling": max(row["step_over_ceiling"] for row in rows),
    }
    harness.write(
        arguments.json, harness.document("filling", rows, claims, claims_meaning=MEANINGS)
    )
    return 0


def measure(directory: Path, arguments: argparse.Namespace) -> list[Row]:
    """A row for each case. Raises LuwuError for a wrong answer."""
    job, cases = SMOKE_JOB if arguments.smoke else JOB, CASES
    if arguments.large:
        job, cases = LARGE_JOB, LARGE_CASES
    runs = TrainingRuns(directory)
    quiet = runs.run("luwu", job, {"durability": "process", "chunk": "128KiB"})
    rows = []
    for number, case in enumerate(cases):
        found = lose_and_fill(directory, f"case-{number}", job, case)
        if found["weights_digest"] != quiet.document["weights_digest"]:
            raise LuwuError(f"{case.name}: other weights than those of a quiet run")
        rows.append(_row(job, case, found))
    return rows


def lose_and_fill(directory: Path, name: str, job: Training, case: Case) -> dict[str, Any]:
    """Events of a run that loses a node with its directory, and its results. Raises LuwuError."""
    state = directory / f"{name}.state"
    flags = {**NODES, **case.flags, "state": str(state), "workers": str(job.workers)}
    script = {**job.flags, "data": str(directory / "text"), "compute_ms": str(case.compute_ms)}
    del script["workers"]
    arguments = ["-m", "workers.train", "--arm", "luwu", *_as_flags(script)]
    with Cluster.run(directory, *arguments, flags=_as_flags(flags), name=name) as cluster:
        cluster.wait_for_steps(LOST_AT, limit_s=300)
        shutil.rmtree(state / "node-1")
        cluster.kill("node-1")
        code = cluster.wait(limit_s=1200)
        if code != 0:
            raise LuwuError(f"{case.name}: the run ended with {code}:\n{cluster.told}")
        found = cluster.results()["node.json"]
        times = _times(cluster.run_directory)
    checked = verify_state(state, 2, full=True)
    if left_out_nodes(state) or checked.damages or checked.disagreement:
        raise LuwuError(f"{case.name}: the node was not filled before the end; give more --steps")
    shutil.rmtree(state)
    return {**found, **times}


def _as_flags(values: Mapping[str, str]) -> list[str]:
    return [part for key, value in values.items() for part in (f"--{key.replace('_', '-')}", value)]


def _times(run: RunDirectory) -> dict[str, Any]:
    """When the node was lost, and filled; step times before and meanwhile."""
    switch = {each["name"]: each for each in _instants(run.events("switch"))}
    begun, ended = switch["switch.filling"], switch["switch.filled"]
    steps_ns = {
        each["step"]: each["at_ns"]
        for each in _instants(run.events("node"))
        if each["name"] == "node.step"
    }
    seconds = {
        step: (steps_ns[step] - steps_ns[before]) / 1e9 for before, step in pairwise(steps_ns)
    }
    return {
        "bytes": begun["bytes"],
        "fill_seconds": (ended["at_ns"] - begun["at_ns"]) / 1e9,
        "before": [seconds[step] for step in range(2, LOST_AT - 1)],
        "meanwhile": [seconds[step] for step in range(begun["step"], ended["step"])],
    }


def _instants(events: Path) -> Iterator[dict[str, Any]]:
    for line in events.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "at_ns" in record:
            yield record


def _row(job: Training, case: Case, found: dict[str, Any]) -> Row:
    before, meanwhile = found["before"], found["meanwhile"]
    over_rate = found["fill_seconds"] / (found["bytes"] / (case.fill_mb_per_s * 1e6))
    row = harness.row(
        case.name, "luwu", meanwhile, workers=job.workers, dtype="float32", switch=True,
        label="emulated" if case.share else "measured", before_seconds=harness.median(before),
        state_bytes=found["bytes"], fill_seconds=found["fill_seconds"], fill_over_rate=over_rate,
        step_over_ceiling=harness.median(meanwhile) * (1 - case.share) / harness.median(before),
        share=case.share,
    )  # fmt: skip
    say(
        f"{case.name}: {found['bytes'] / 1e6:.0f} MB in {found['fill_seconds']:.1f} s, "
        f"{over_rate:.2f} of the rate's time; a step {row['before_seconds']:.3f} s before, "
        f"{row['seconds_median']:.3f} s meanwhile, {row['step_over_ceiling']:.2f} of its ceiling"
    )
    return row


if __name__ == "__main__":
    raise SystemExit(main())
