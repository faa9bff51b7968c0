"""Does a run that is slowed down as a whole keep its proportions?

A small GPT with injected compute, emulated links and an emulated disk is trained at several
dilations. What the host itself adds does not grow with them, so the larger the dilation, the less
of a step it is; where it is little, a step must take exactly `dilation` times as long.

Metric:   ratio = median step / compute, where compute is what was injected, dilated alike
Ceiling:  the same run without links, disk and compute: what the host adds to a step
Bound:    all ratios within 5 % of each other where the host's work is under 5 % of a step
Checked:  every run ends with the same weights, and no emulated link lost anything
Left out: whether the undilated ratio is that of real hardware.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from benchmarks import harness
from benchmarks.harness import Row, say
from benchmarks.training import Run, Training, TrainingRuns, temporary_directory
from luwu.base.errors import LuwuError

DILATIONS: Final = (10.0, 30.0, 100.0)
SMOKE_DILATIONS: Final = (2.0, 4.0)
JOB: Final = Training(layers=4, width=64, context=16, batch=1, workers=2, steps=8)
SMOKE_JOB: Final = Training(layers=1, width=32, context=8, batch=1, workers=2, steps=4)
COMPUTE_MS: Final = 4.0
LINK: Final = "rate=200mbit,delay=0.1ms"
DISK_RATE: Final = "200MB/s"
HOST_SHARE_MAX: Final = 0.05
SPREAD_MAX: Final = 0.05
COMMON: Final = {"memory_budget": "256MiB", "durability": "process", "chunk": "256KiB"}

MEANINGS: Final = {
    "ratio_spread": "(largest - least) / least of step / compute over the dilations at which the "
    "host works for under 5 % of a step; 0.05 is the bound",
    "counted": "dilations that counted",
}


def main() -> int:
    """Run the program; the exit code."""
    parser = harness.flags("dilation", __doc__ or "")
    arguments = parser.parse_args()
    with temporary_directory() as name:
        rows = measure(TrainingRuns(Path(name)), arguments)
    counted = [row for row in rows if row["is_counted"]]
    ratios = [row["ratio"] for row in counted]
    claims = {
        "ratio_spread": (max(ratios) - min(ratios)) / min(ratios) if len(ratios) > 1 else None,
        "counted": [row["dilation"] for row in counted],
    }
    result = harness.document("dilation", rows, claims, claims_meaning=MEANINGS)
    harness.write(arguments.json, result)
    say(f"ratio spread {claims['ratio_spread']} over {claims['counted']}; bound {SPREAD_MAX}")
    return 0


def measure(runs: TrainingRuns, arguments: argparse.Namespace) -> list[Row]:
    """A row for each dilation. Raises LuwuError for a wrong answer."""
    job = SMOKE_JOB if arguments.smoke else JOB
    host = runs.run("luwu", job, COMMON)
    host_s = harness.median(host.step_seconds)
    say(f"host: {host_s * 1e3:.0f} ms a step without links, disk and compute")
    rows = []
    for dilation in SMOKE_DILATIONS if arguments.smoke else DILATIONS:
        run = runs.run("luwu", job, {
            **COMMON, "link": LINK, "disk_rate": DISK_RATE, "compute_ms": str(COMPUTE_MS),
            "dilation": str(dilation),
        })  # fmt: skip
        rows.append(_row(job, run, dilation, host_s))
        _check(run, host)
    return rows


def _row(job: Training, run: Run, dilation: float, host_s: float) -> Row:
    units_count = job.layers + 1
    compute_s = 2 * units_count * COMPUTE_MS / 1e3 * dilation
    middle = harness.median(run.step_seconds)
    row = harness.row(
        f"dilation {dilation:g}", "luwu", run.step_seconds, workers=job.workers, dtype="float32",
        switch=True, label="emulated", dilation=dilation, compute_seconds=compute_s,
        ratio=middle / compute_s, host_seconds=host_s, host_share=host_s / middle,
        is_counted=host_s / middle < HOST_SHARE_MAX,
    )  # fmt: skip
    say(f"dilation {dilation:g}: {middle:.3f} s a step, {row['ratio']:.3f} x compute, host "
        f"{row['host_share']:.1%}")  # fmt: skip
    return row


def _check(run: Run, host: Run) -> None:
    digests = run.document["weights_digest"], host.document["weights_digest"]
    if digests[0] != digests[1]:
        raise LuwuError(f"dilated and plain runs end with other weights: {digests}")
    for row in run.document["links"] or []:
        if row["messages"]["dropped"]:
            raise LuwuError(f"an emulated link without loss dropped messages: {row}")


if __name__ == "__main__":
    raise SystemExit(main())
