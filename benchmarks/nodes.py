"""Several optimizer nodes: does disk time divide by their number, and do copies spread pulls?

A small GPT out of core, by one, two and four nodes. Each node's disk is emulated, for a machine has
one: what passes is slowed to a rate that any real disk exceeds, so that nodes do not share it.
Then, in RAM, each node's link down is: pulls take longer than all else. By one node, by two, and
by two that both hold all pages.

Metric:   disk seconds a step: the time in which a node had a page on its way from or to its disk,
          by the node's own events; the slowest node. Beside it a step, without the first ones.
          Where pulls limit: a step.
Ceiling:  the same with one node, divided by the number of nodes
Bound:    disk: at most 10 % above it; pulls: two nodes with replicas are at least 1.6 times as fast
          as one, and 0.9 times as two without
Checked:  every run ends with the same weights; pages of all nodes together are those of one
Left out: nodes on several hosts; what one disk gains from several processes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import harness
from benchmarks.harness import Row, say
from benchmarks.training import Run, Training, TrainingRuns, temporary_directory
from luwu.base.errors import LuwuError
from luwu.report.aligned import survey, timed
from luwu.report.intervals import union

COUNTS: Final = (1, 2, 4)
JOB: Final = Training(layers=4, width=384, context=32, batch=1, workers=2, steps=9)
"""7.3 M parameters: a state of 87 MB."""
SMOKE_JOB: Final = Training(layers=1, width=64, context=8, batch=1, workers=2, steps=3)
DISK_RATE: Final = "100MB/s"
DISK_SPANS: Final = ("read", "read_weights", "write")
OVER_MAX: Final = 1.10
PULLS: Final = ((1, 1), (2, 1), (2, 2))
"""Nodes and replicas, where pulls limit."""
PULL_JOB: Final = Training(layers=4, width=384, context=32, batch=1, workers=2, steps=14)
PULL_FLAGS: Final = {
    "memory_budget": "256MiB", "durability": "process", "chunk": "128KiB",
    "link": "node.down=200mbit",
}  # fmt: skip
FLAGS: Final = {
    "memory_budget": "64MiB", "durability": "process", "chunk": "128KiB", "disk_rate": DISK_RATE,
}  # fmt: skip

MEANINGS: Final = {
    "over_ceiling_max": "disk seconds a step / those of one node divided by the nodes, the worst "
    "case; at most 1.10",
    "digests": "how many different weights the runs of one job end with; 1",
    "replicas_over_one": "where pulls limit: a step of one node over one of two with replicas; "
    "at least 1.6",
    "replicas_over_two": "the same of two nodes without replicas; at least 0.9",
}


def main() -> int:
    """Run the program; the exit code."""
    parser = harness.flags("nodes", __doc__ or "")
    arguments = parser.parse_args()
    with temporary_directory() as name:
        runs = TrainingRuns(Path(name))
        rows, pulls = measure(runs, arguments), measure_pulls(runs, arguments)
    one, two, both = (row["seconds_median"] for row in pulls)
    claims = {
        "over_ceiling_max": max(row["over_ceiling"] for row in rows),
        "digests": max(len({row["weights_digest"] for row in of}) for of in (rows, pulls)),
        "replicas_over_one": one / both,
        "replicas_over_two": two / both,
    }
    result = harness.document("nodes", [*rows, *pulls], claims, claims_meaning=MEANINGS)
    harness.write(arguments.json, result)
    say(f"at most {claims['over_ceiling_max']:.2f} of the ceiling; bound {OVER_MAX}")
    say(f"two nodes with replicas: {one / both:.2f} and {two / both:.2f} times as fast as one, two")
    return 0


def measure(runs: TrainingRuns, arguments: argparse.Namespace) -> list[Row]:
    """A row for each number of nodes. Raises LuwuError for a wrong answer."""
    job = SMOKE_JOB if arguments.smoke else JOB
    rows: list[Row] = []
    for count in COUNTS:
        run = runs.run("luwu", job, {**FLAGS, "optimizer_nodes": str(count)})
        row = _row(job, run, count, rows[0]["disk_seconds"] if rows else None)
        rows.append(row)
        _check(row, rows[0])
    return rows


def measure_pulls(runs: TrainingRuns, arguments: argparse.Namespace) -> list[Row]:
    """A row for each number of nodes and replicas. Raises LuwuError for a wrong answer."""
    job = SMOKE_JOB if arguments.smoke else PULL_JOB
    rows: list[Row] = []
    for nodes, replicas in PULLS:
        flags = {"optimizer_nodes": str(nodes), "replicas": str(replicas)}
        run = runs.run("luwu", job, {**PULL_FLAGS, **(flags if nodes > 1 else {})})
        row = harness.row(
            f"pulls, {nodes} nodes, {replicas} replicas", "luwu", run.step_seconds,
            workers=job.workers, dtype="float32", switch=True, label="emulated", nodes=nodes,
            replicas=replicas, weights_digest=run.document["weights_digest"],
        )  # fmt: skip
        say(f"pulls limit, {nodes} nodes, {replicas} replicas: step {row['seconds_median']:.3f} s")
        rows.append(row)
        _check(row, rows[0])
    return rows


def disk_seconds(events: Path) -> list[float]:
    """How long each node's disk was at work in a run."""
    found = survey(events)
    seconds = []
    for file in found.files:
        if file.kind == "node":
            spans = [each for each in timed(file, found) if each.name in DISK_SPANS]
            starts_S = np.array([each.start_ns for each in spans], np.int64)
            ends_S = np.array([each.end_ns for each in spans], np.int64)
            seconds.append(union(starts_S, ends_S).total_ns / 1e9)
    return seconds


def _row(job: Training, run: Run, count: int, of_one: float | None) -> Row:
    by_node = [seconds / job.steps for seconds in disk_seconds(run.directory / "events")]
    if len(by_node) != count:
        raise LuwuError(f"{count} nodes ran, {len(by_node)} have events in {run.directory}")
    disk_s = max(by_node)
    bytes_by_node = [each["read"] + each["written"] for each in run.document["disk_bytes_by_node"]]
    row = harness.row(
        f"{count} nodes", "luwu", run.step_seconds, workers=job.workers, dtype="float32",
        switch=True, label="emulated", nodes=count, disk_seconds=disk_s,
        disk_seconds_by_node=by_node, disk_bytes_by_node=bytes_by_node,
        over_ceiling=disk_s * count / (of_one or disk_s),
        weights_digest=run.document["weights_digest"],
    )  # fmt: skip
    say(f"{count} nodes: disk {disk_s:.3f} s a step, {row['over_ceiling']:.2f} of the ceiling; "
        f"step {row['seconds_median']:.3f} s")  # fmt: skip
    return row


def _check(row: Row, first: Row) -> None:
    if row["weights_digest"] != first["weights_digest"]:
        raise LuwuError(
            f"{row['nodes']} nodes end with {row['weights_digest']}, one with "
            f"{first['weights_digest']}"
        )


if __name__ == "__main__":
    raise SystemExit(main())
