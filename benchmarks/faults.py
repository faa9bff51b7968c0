"""What does a network that loses, repeats and reorders messages cost a training step?

A small GPT with injected compute is trained over emulated links, in turn without faults, with a
hundredth and a tenth of all messages lost, and with a fifth of them repeated and all reordered.

Metric:   ratio = median step with faults / median step without, of the same seed
Ceiling:  the run without faults, on links of the same rate and delay
Bounds:   1.15 with 1 % loss, 2.5 with 10 %, where a step takes at least 2 s
Checked:  every run ends with the weights of the run without faults, bit for bit; the links of a run
          with faults lost or repeated as many messages as they were asked to
Left out: loss below a connection, which tcp repairs; kills (`python -m tests.kill`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from benchmarks.harness import Row, say
from benchmarks.training import Run, Training, TrainingRuns, temporary_directory
from luwu.base.errors import LuwuError

JOB: Final = Training(layers=4, width=128, context=32, batch=1, workers=2, steps=15)
SMOKE_JOB: Final = Training(layers=1, width=32, context=8, batch=1, workers=2, steps=4)
COMPUTE_MS: Final = 190.0
SMOKE_COMPUTE_MS: Final = 2.0
LINK: Final = "rate=200mbit,delay=0.2ms"
COMMON: Final = {
    "memory_budget": "256MiB", "durability": "process", "link": LINK, "chunk": "128KiB",
}  # fmt: skip
FAULTS: Final[dict[str, dict[str, str]]] = {
    "loss 1 %": {"link": f"{LINK},loss=0.01"},
    "loss 10 %": {"link": f"{LINK},loss=0.1"},
    "repeated and reordered": {"link": f"{LINK},duplicate=0.2,reorder=64"},
}
REPEATS: Final = 3

MEANINGS: Final = {
    "loss_1_ratio": "step with 1 % loss / step without, median over seeds; the bound is 1.15",
    "loss_10_ratio": "the same with 10 %; the bound is 2.5",
    "repeated_ratio": "the same with 20 % repeated and windows of 64 reordered; no bound",
    "step_seconds_least": "shortest median step; the bounds hold from 2 s on",
    "same_weights": "runs with faults that end with the weights of the run without: all",
}


def main() -> int:
    """Run the program; the exit code."""
    parser = harness.flags("faults", __doc__ or "")
    arguments = parser.parse_args()
    with temporary_directory() as name:
        rows = measure(TrainingRuns(Path(name)), arguments)
    result = harness.document("faults", rows, claims_of(rows), claims_meaning=MEANINGS)
    harness.write(arguments.json, result)
    for name, value in result["claims"].items():
        say(f"{name} {value}")
    return 0


def measure(runs: TrainingRuns, arguments: argparse.Namespace) -> list[Row]:
    """A row for each kind of fault and seed. Raises LuwuError for a wrong answer."""
    job = SMOKE_JOB if arguments.smoke else JOB
    compute_ms = SMOKE_COMPUTE_MS if arguments.smoke else COMPUTE_MS
    repeats = arguments.repeats or (1 if arguments.smoke else REPEATS)
    rows = []
    for seed in range(repeats):
        flags = {**COMMON, "compute_ms": str(compute_ms), "seed": str(seed)}
        calm = runs.run("luwu", job, flags)
        rows.append(_row("none", seed, job, calm, calm))
        for name, faults in FAULTS.items():
            run = runs.run("luwu", job, {**flags, **faults})
            _check(name, seed, run, calm)
            rows.append(_row(name, seed, job, run, calm))
    return rows


def claims_of(rows: list[Row]) -> dict[str, Any]:
    """The ratios of a table of rows."""

    def ratio(name: str) -> float:
        return harness.median([row["ratio"] for row in rows if row["faults"] == name])

    return {
        "loss_1_ratio": ratio("loss 1 %"),
        "loss_10_ratio": ratio("loss 10 %"),
        "repeated_ratio": ratio("repeated and reordered"),
        "step_seconds_least": min(row["seconds_median"] for row in rows),
        "same_weights": sum(row["faults"] != "none" for row in rows),
    }


def _row(name: str, seed: int, job: Training, run: Run, calm: Run) -> Row:
    ratio = harness.median(run.step_seconds) / harness.median(calm.step_seconds)
    row = harness.row(
        f"{name}, seed {seed}", "luwu", run.step_seconds, workers=job.workers, dtype="float32",
        switch=True, label="emulated", faults=name, seed=seed, ratio=ratio,
        **_counts(run),
    )  # fmt: skip
    say(
        f"{row['case']}: {row['seconds_median']:.3f} s a step, {ratio:.2f} x; "
        f"{row['dropped_count']} of {row['messages_count']} messages lost, "
        f"{row['repeated_count']} repeated"
    )
    return row


def _counts(run: Run) -> dict[str, int]:
    """Messages of all emulated links of a run."""
    counts = [row["messages"] for row in run.document["links"]]
    return {
        "messages_count": sum(each["sent"] for each in counts),
        "dropped_count": sum(each["lost"] for each in counts),
        "repeated_count": sum(each["repeated"] for each in counts),
    }


def _check(name: str, seed: int, run: Run, calm: Run) -> None:
    digests = run.document["weights_digest"], calm.document["weights_digest"]
    if digests[0] != digests[1]:
        raise LuwuError(f"{name}, seed {seed}: ends with other weights than without: {digests}")
    counts = _counts(run)
    done = counts["dropped_count"] + counts["repeated_count"]
    if not done:
        raise LuwuError(f"{name}, seed {seed}: no message was lost or repeated: {counts}")


if __name__ == "__main__":
    raise SystemExit(main())
