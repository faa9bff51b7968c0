"""What does a training step on GPUs take: time, GPU memory, host memory?

Metric:   tokens_per_s of the job: tokens of all workers / median seconds of a step (from the last
          worker's end to that of the next), without the first steps. Memory: the most of the run.
Floor:    compute-only: the same model, batches and GPU; no update and no exchange.
Rows:     LuWu with 1, 2 and 4 workers, which share the GPUs there are (their contexts take turns on
          one GPU: a row of several workers on one GPU says what it costs, not how it scales);
          FSDP2 over NCCL and FSDP2 with CPUOffloadPolicy with 1, 2 and 4 workers, each of which
          needs a GPU: NCCL refuses two ranks on one. What cannot run here is named as not run.
Checked:  each arm's losses against those of FSDP2 with as many workers, where it ran; with one
          worker also between LuWu and both of FSDP2's.
Left out: start and end of the runs.

The model is the built-in GPT in bfloat16. Without a GPU nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import compute_only, harness
from benchmarks.crew import SOURCE
from benchmarks.harness import Row, say
from benchmarks.training import COMPUTE_ONLY, WARM_UPS, Training, temporary_directory
from luwu.base.config import resolve
from luwu.base.errors import LuwuError
from luwu.base.json_file import read_json
from luwu.compare.arm import ArmRun, run_arm, script_arguments
from luwu.compare.comparison import arm_document
from luwu.launch.processes.console import Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.serving import decide_sizes
from luwu.launch.supervisor import Supervisor, threads_per_worker
from workers.options import env_int

LARGE = Training(layers=28, width=1024, context=512, batch=8, workers=1, steps=12)
"""353 M parameters."""
SMALL = Training(layers=2, width=96, context=16, batch=1, workers=1, steps=5)
WORKERS = (1, 2, 4)
FSDP_ARMS = ("fsdp", "fsdp_offload")
LUWU_FLAGS = {"durability": "none"}
LOSS_RELATIVE = 2**-6
"""Rounding: weights and gradients travel in bfloat16, with 8 bits of mantissa; over a few steps."""


class ComputeOnlyOnGpu(compute_only.ComputeOnlyArm):
    """The floor's arm, on the GPU and in the model's compute dtype."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.device = torch.device("cuda", env_int("LOCAL_RANK", 0) % torch.cuda.device_count())
        torch.cuda.set_device(self.device)

    def build(self, config: Any) -> None:
        super().build(config)
        self.module.to(self.device, config.dtype)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.0)


class Runs:
    """One run after the other, each in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self._data = directory / "text"
        letters = np.random.default_rng(0).integers(97, 123, 2_000_000, dtype=np.uint8)
        self._data.write_bytes(letters.tobytes())
        # The launcher starts this file as a module, from wherever we were started.
        paths = [str(SOURCE), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

    def run(self, arm: str, job: Training) -> dict[str, Any]:
        """Train by an arm; what it measured, with the workers' own records."""
        self._count += 1
        run = RunDirectory.create(self._directory / f"{self._directory.name}-{self._count}")
        flags = {"data": str(self._data), "dtype": "bfloat16", **job.flags, **LUWU_FLAGS}
        config = resolve(flags=flags, environ={}).config
        with (run.path / "console.log").open("a") as log:
            if arm == COMPUTE_ONLY:
                done = self._compute_only(config, run, Console(log))
            else:
                sizes = decide_sizes(config, None)
                done = run_arm(arm, config, sizes, run, Console(log), lambda: False)
        tokens = job.workers * job.batch * job.context
        return {**arm_document(done, tokens), "records": done.workers}

    def _compute_only(self, config: Any, run: RunDirectory, console: Console) -> ArmRun:
        result = run.result(f"{COMPUTE_ONLY}.json")
        threads = threads_per_worker(config.workers)
        with Supervisor(run, console, prefix=f"{COMPUTE_ONLY}-") as supervisor:
            supervisor.train(
                ["-m", "benchmarks.gpu_step", COMPUTE_ONLY,
                 *script_arguments("ddp", config, result)],
                workers=config.workers, connect=None, threads=threads,
                sink=lambda data, is_error: None,
            )  # fmt: skip
            supervisor.wait()
        paths = [result.with_suffix(f".rank{rank}.json") for rank in range(config.workers)]
        return ArmRun(
            name=COMPUTE_ONLY, workers=[read_json(path) or {} for path in paths], node=None,
            memory_peaks=supervisor.memory_peaks,
            memory_peak_of_all=supervisor.memory_peak_of_all, kernel_disk=None, threads=threads,
            updated_before_last_push_ratio=None,
        )  # fmt: skip


def not_run_reason(arm: str, workers: int, gpus: int) -> str | None:
    """Why a row cannot be measured on a machine with so many GPUs; None if it can."""
    if arm in FSDP_ARMS and workers > gpus:
        return f"not run: {workers} GPUs needed, {gpus} here (NCCL takes one rank a GPU)"
    return None


def cases(job: Training, gpus: int) -> tuple[dict[str, tuple[str, Training]], dict[str, str]]:
    """(name -> arm and job of what can be measured here, name -> why it is not)."""
    found: dict[str, tuple[str, Training]] = {COMPUTE_ONLY + " N=1": (COMPUTE_ONLY, job)}
    left_out: dict[str, str] = {}
    for arm in ("luwu", *FSDP_ARMS):
        for workers in WORKERS:
            name, reason = f"{arm} N={workers}", not_run_reason(arm, workers, gpus)
            if reason is None:
                found[name] = (arm, replace(job, workers=workers))
            else:
                left_out[name] = reason
    return found, left_out


def sharing(workers: int, gpus: int) -> str:
    """How many workers stand on one GPU, in words."""
    return "" if workers <= gpus else f"{workers} workers share {gpus} GPU" + "s" * (gpus > 1)


def row_of(name: str, arm: str, seconds: list[float], found: dict[str, Any], gpus: int) -> Row:
    """What was measured of one arm."""
    records = found["records"]
    tokens = sum(record["tokens"] for record in records) // len(records[0]["step_seconds"])
    return harness.row(
        name, arm, seconds, workers=len(records), dtype="bfloat16",
        tokens_per_s=tokens / harness.median(seconds),
        device_bytes_max=max(record["device_bytes_max"] for record in records),
        device_bytes_all_workers=sum(record["device_bytes_max"] for record in records),
        worker_host_bytes_max=max(found["worker_peak_rss_bytes"]),
        node_host_bytes=found["node_peak_rss_bytes"],
        sharing=sharing(len(records), gpus), loss=found["loss"],
        pull_before_use_ratio=found["overlap"]["pull_before_use_ratio"],
    )  # fmt: skip


def check_losses(rows: list[Row]) -> None:
    """Fast and wrong is not fast. Raises LuwuError if arms of one job disagree."""
    for each in rows:
        if each["arm"] == COMPUTE_ONLY:
            continue
        if not np.isfinite(each["loss"]).all():
            raise LuwuError(f"{each['case']}: a loss is not finite")
        for other in rows:
            same_job = other["arm"] in FSDP_ARMS and other["workers"] == each["workers"]
            if same_job and not np.allclose(each["loss"], other["loss"], LOSS_RELATIVE, 0):
                raise LuwuError(
                    f"{each['case']} and {other['case']} trained the same job, but their "
                    f"losses are {each['loss']} and {other['loss']}"
                )


def claims(rows: list[Row]) -> dict[str, float]:
    """Ratios within this run."""
    speed = {each["case"]: each["tokens_per_s"] for each in rows}
    memory = {each["case"]: each["device_bytes_max"] for each in rows}
    found = {}
    for other in (COMPUTE_ONLY, *FSDP_ARMS):
        if speed.keys() >= {"luwu N=1", f"{other} N=1"}:
            name = other.replace("-", "_")
            found[f"speed_over_{name}"] = speed["luwu N=1"] / speed[f"{other} N=1"]
            found[f"memory_over_{name}"] = memory["luwu N=1"] / memory[f"{other} N=1"]
    return found


def main() -> int:
    """Measure, or say that there is no GPU."""
    if sys.argv[1:2] == [COMPUTE_ONLY]:  # a worker of the floor
        del sys.argv[1]
        compute_only.ComputeOnlyArm = ComputeOnlyOnGpu  # type: ignore[misc]
        return compute_only.main()
    arguments = harness.flags("gpu_step", __doc__ or "").parse_args()
    if not torch.cuda.is_available():
        say("no GPU: not run")
        return 0
    try:
        return _run(arguments)
    except LuwuError as error:
        say(f"gpu_step: {error}")
        return error.exit_code


def _run(arguments: argparse.Namespace) -> int:
    job = SMALL if arguments.smoke else LARGE
    repeats = arguments.repeats or (1 if arguments.smoke else 2)
    gpus = torch.cuda.device_count()
    to_run, left_out = cases(job, gpus)
    last: dict[str, dict[str, Any]] = {}
    with temporary_directory() as folder:
        runs = Runs(Path(folder))

        def measure(name: str) -> list[float]:
            say(name)
            last[name] = runs.run(*to_run[name])
            seconds: list[float] = last[name]["step_seconds"]
            return seconds[min(WARM_UPS, len(seconds) - 1) :]

        arms: dict[str, Callable[[], list[float]]] = {
            name: partial(measure, name) for name in to_run
        }
        seconds = harness.interleave(arms, repeats)
    rows = [
        row_of(name, to_run[name][0], found, last[name], gpus) for name, found in seconds.items()
    ]
    check_losses(rows)
    _show(rows, left_out, gpus)
    result = harness.document(
        "gpu_step", rows, claims(rows), smoke=arguments.smoke, not_run=left_out, gpus=gpus,
        gpu=torch.cuda.get_device_name(0),
    )  # fmt: skip
    harness.write(arguments.json, result)
    return 0


def _show(rows: list[Row], left_out: dict[str, str], gpus: int) -> None:
    say(f"\n{gpus} x {torch.cuda.get_device_name(0)}; losses agree where arms share a job")
    lines = []
    for each in rows:
        node = each["node_host_bytes"]
        lines.append(
            (
                each["case"],
                f"{each['tokens_per_s']:,.0f}",
                f"{each['seconds_spread']:.0%}",
                f"{each['device_bytes_max'] / 2**30:.2f}",
                f"{each['worker_host_bytes_max'] / 2**30:.2f}",
                "-" if node is None else f"{node / 2**30:.2f}",
                each["sharing"],
            )
        )
    headings = ("arm", "tokens/s", "spread", "GPU GiB", "worker GiB", "node GiB", "")
    harness.print_table(headings, lines)
    for name, reason in left_out.items():
        say(f"{name}  {reason}")


if __name__ == "__main__":
    raise SystemExit(main())
