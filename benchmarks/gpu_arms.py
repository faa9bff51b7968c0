"""What does a training step on a GPU take: time, memory, copies? The arms of `gpu_check.py`.

Metric:   tokens_per_s of the job: tokens of all workers / median seconds of a step (from the last
          worker's end to that of the next), without the first steps and those that are profiled.
          Memory: the most that torch allocated on the device. Copies: see `gpu_worker.py`.
Floor:    single: the same model on one GPU in plain torch, without any exchange.
Rows:     LuWu with 1 and 2 workers, which share the GPUs there are (their contexts take turns on
          one GPU: two workers on it say what sharing costs, not how LuWu scales); FSDP2 over NCCL,
          with and without CPUOffloadPolicy, and DDP, each with 1 and 2 workers, which need a GPU
          each: NCCL refuses two ranks on one. What cannot run here is named as not run.
          Every arm trains the same samples in every step: of several workers, each has its part.
Checked:  each arm's losses against those of the first FSDP2 that ran.
Left out: start and end of the runs.

The model is the built-in GPT in bfloat16.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.gpu_worker import PROFILED_STEPS
from benchmarks.harness import Row, say
from benchmarks.training import WARM_UPS, Run, Training, TrainingRuns
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import Interrupted, LuwuError
from luwu.launch.processes.console import tail

LARGE = Training(layers=12, width=1024, context=512, batch=32, workers=1, steps=18)
"""152 M parameters."""
SMALL = Training(layers=2, width=96, context=16, batch=2, workers=1, steps=9)
WORKERS = (1, 2)
LUWU, SINGLE = "luwu", "single"
NCCL_ARMS = ("fsdp", "fsdp_offload", "ddp")
LUWU_FLAGS = {"durability": "none"}
LOSS_RELATIVE = 2**-6
"""Rounding: weights and gradients travel in bfloat16, with 8 bits of mantissa; over a few steps."""
ARM_SECONDS_MAX = 110.0


def not_run_reason(arm: str, workers: int, gpus: int) -> str | None:
    """Why a row cannot be measured with so many GPUs (0: on the CPU, over gloo); None if it can."""
    if arm in NCCL_ARMS and 0 < gpus < workers:
        return f"{workers} GPUs needed, {gpus} here (NCCL takes one rank a GPU)"
    return None


def cases(job: Training, gpus: int) -> tuple[dict[str, tuple[str, Training]], dict[str, str]]:
    """(name -> arm and job of what can be measured here, name -> why it is not).

    `job` is that of one worker; the rows that matter most come first.
    """
    found: dict[str, tuple[str, Training]] = {}
    left_out: dict[str, str] = {}
    wanted = [(LUWU, 2), *((arm, 1) for arm in NCCL_ARMS), (LUWU, 1), (SINGLE, 1)]
    for arm, workers in [*wanted, *((arm, 2) for arm in NCCL_ARMS)]:
        name, reason = f"{arm} N={workers}", not_run_reason(arm, workers, gpus)
        if reason is None:
            found[name] = (arm, replace(job, workers=workers, batch=job.batch // workers))
        else:
            left_out[name] = reason
    return found, left_out


@dataclass(slots=True)
class Measured:
    """Rows, and the reasons where there is none."""

    rows: list[Row] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)


def measure(
    to_run: Mapping[str, tuple[str, Training]], directory: Path, *, gpus: int, end_ns: int
) -> Measured:
    """Run one case after the other until `end_ns`; what fails is kept, and the next one runs."""
    found = Measured()
    deadline_ns = end_ns
    runs = TrainingRuns(
        directory, script=("-m", "benchmarks.gpu_worker"),
        should_stop=lambda: SYSTEM_CLOCK.now_ns() > deadline_ns,
    )  # fmt: skip
    for name, (arm, job) in to_run.items():
        started_ns = SYSTEM_CLOCK.now_ns()
        if started_ns > end_ns:
            found.not_run[name] = "no time was left"
            continue
        say(name)
        deadline_ns = min(end_ns, started_ns + int(ARM_SECONDS_MAX * 1e9))
        flags = {"dtype": "bfloat16", **LUWU_FLAGS}
        try:
            found.rows.append(row_of(name, arm, runs.run(arm, job, flags), gpus))
        except Interrupted:
            took_s = (SYSTEM_CLOCK.now_ns() - started_ns) / 1e9
            found.failed[name] = f"stopped after {took_s:.0f} s; {_last_lines(directory)}"
        except LuwuError as error:
            found.failed[name] = str(error)
        except Exception:  # a fault of ours in one row is no reason to lose the others
            found.failed[name] = traceback.format_exc()
    return found


def _last_lines(directory: Path) -> str:
    """What the workers of the last run printed last."""
    logs = sorted(directory.glob("*/logs/*worker-*.log"), key=lambda each: each.stat().st_mtime)
    return "; ".join(f"{log.name}: {tail(log) or 'empty'}" for log in logs[-2:])


def sharing(workers: int, gpus: int) -> str:
    """How many workers stand on one GPU, in words."""
    return (
        "" if workers <= gpus or not gpus else f"{workers} workers on {gpus} GPU" + "s" * (gpus > 1)
    )


def row_of(name: str, arm: str, run: Run, gpus: int) -> Row:
    """What was measured of one arm. Raises LuwuError if a loss is not finite."""
    document, records = run.document, run.workers
    if not np.isfinite(document["loss"]).all():
        raise LuwuError(f"a loss is not finite: {document['loss']}")
    not_timed = records[0]["steps_not_timed"]
    seconds = document["step_seconds"][WARM_UPS:-not_timed]
    tokens = sum(record["tokens"] for record in records) // len(document["step_seconds"])
    device_bytes = [record["device_bytes_max"] for record in records]
    return harness.row(
        name, arm, seconds, workers=len(records), dtype="bfloat16",
        parameters=records[0]["parameters_count"],
        tokens_per_step=tokens,
        tokens_per_s=tokens / harness.median(seconds),
        device=records[0]["device"],
        device_bytes_max=_of(device_bytes, max),
        device_bytes_all_workers=_of(device_bytes, sum),
        worker_host_bytes_max=_of(document["worker_peak_rss_bytes"], max),
        node_host_bytes=document["node_peak_rss_bytes"],
        copies=copies_of([record["copies"] for record in records]),
        copies_missing=records[0]["copies_missing"],
        sharing=sharing(len(records), gpus), loss=document["loss"],
        pull_before_use_ratio=document["overlap"]["pull_before_use_ratio"],
    )  # fmt: skip


def copies_of(records: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The copies of all workers of a row: sums, and the share over all of their time."""
    known = [each for each in records if each is not None]
    if not known:
        return None
    seconds = sum(each["seconds_a_step"] for each in known)
    hidden = sum(each["seconds_a_step"] * each["behind_compute_ratio"] for each in known)
    return {
        "seconds_a_step": seconds,
        "bytes_a_step": sum(each["bytes_a_step"] for each in known),
        "behind_compute_ratio": hidden / seconds,
        "profiled_steps": PROFILED_STEPS,
    }


def losses_that_differ(rows: list[Row]) -> list[str]:
    """A sentence for each arm whose losses are not those of FSDP2. Fast and wrong is not fast."""
    expected = next((each for each in rows if each["arm"] in NCCL_ARMS), None)
    if expected is None:
        return []
    return [
        f"{each['case']} and {expected['case']} trained the same samples, but their losses are "
        f"{each['loss']} and {expected['loss']}"
        for each in rows
        if not np.allclose(each["loss"], expected["loss"], LOSS_RELATIVE, 0)
    ]


def claims(rows: list[Row]) -> dict[str, float]:
    """Ratios within this run: of LuWu to each other arm with one worker."""
    by_case = {each["case"]: each for each in rows}
    found = {}
    for workers in WORKERS:
        ours = by_case.get(f"{LUWU} N={workers}")
        for arm in (*NCCL_ARMS, SINGLE):
            other = by_case.get(f"{arm} N=1")
            if ours is None or other is None:
                continue
            end = f"{arm}_n{workers}"
            found[f"speed_over_{end}"] = ours["tokens_per_s"] / other["tokens_per_s"]
            if other["device_bytes_max"]:
                found[f"device_memory_over_{end}"] = (
                    ours["device_bytes_max"] / other["device_bytes_max"]
                )
    return found


def _of(values: list[int | None], what: Callable[[list[int]], int]) -> int | None:
    known = [value for value in values if value is not None]
    return what(known) if known else None
