"""What does it take to hold the inputs of checkpointed blocks: memory, and time?

Metric:   seconds of a training step, without the first; the process's peak of resident memory
          beyond what it had before the first step (VmHWM - VmRSS then, so without torch, weights
          and text, but with gradients and AdamW state, which all arms have alike).
Arms:     none         no checkpointing: every activation is kept
          checkpoint   the inputs of blocks are kept in memory, the rest is computed again
          offload      the same with luwu.offload_activations and a budget of 0: inputs go to disk
Beside:   bytes an input of a block has, all of them, and what the store wrote and read a step; the
          disk's rate for one file of as many bytes, written with a flush and read again.
Checked:  the losses of all arms: equal, bit for bit.
Left out: any exchange of gradients; the built-in GPT trains alone, with torch's AdamW.

Each arm is a process of its own, so that one's memory is not another's. What is written stays in
the kernel's page cache while memory is free; that is not the process's memory. `--dir` says on
which disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import luwu
from benchmarks import harness
from benchmarks.crew import SOURCE
from benchmarks.harness import Row, say
from luwu.base.errors import LuwuError
from luwu.base.quantities import format_bytes
from workers.gpt import GPT, Checkpointing, GPTConfig, init_weights

ARMS: dict[str, tuple[Checkpointing, bool]] = {
    "none": ("none", False),
    "checkpoint": ("nonreentrant", False),
    "offload": ("nonreentrant", True),
}
MEANINGS = {
    "checkpoint_memory_ratio": "peak beyond the start, checkpoint / none; less is better",
    "offload_memory_ratio": "peak beyond the start, offload / checkpoint; less is better",
    "offload_seconds_ratio": "seconds of a step, offload / checkpoint; less is better",
}
TUNABLES = "glibc.malloc.mmap_threshold=1048576"
"""What is freed goes back to the kernel at once, in all arms; else the peak would count what malloc
keeps, which is more than what is looked for."""
DISK_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained."""

    layers: int
    width: int
    context: int
    batch: int
    steps: int

    @property
    def input_bytes(self) -> int:
        """Of one block."""
        return 4 * self.batch * self.context * self.width


REAL = Job(layers=32, width=128, context=4096, batch=2, steps=3)
SMALL = Job(layers=3, width=64, context=64, batch=2, steps=3)


def train(arm: str, job: Job, directory: str) -> dict[str, Any]:
    """One arm, in this process."""
    checkpointing, offloads = ARMS[arm]
    config = GPTConfig(
        layers=job.layers, width=job.width, heads=job.width // 32, context=job.context,
        checkpointing=checkpointing,
    )  # fmt: skip
    model = GPT(config)
    for module in model.modules():
        init_weights(module, 0)
    if offloads:
        luwu.offload_activations(model, memory_budget=0, directory=directory, min_bytes=1024)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(0)
    start_bytes = status_bytes("VmRSS")
    losses, seconds = [], []

    def step() -> None:
        ids = torch.randint(0, 256, (job.batch, job.context + 1), generator=generator)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    for _ in range(job.steps):
        seconds.append(harness.timed(step))
    stats = luwu.activation_stats(model) if offloads else None
    return {
        "seconds": seconds[1:],
        "losses": losses,
        "peak_bytes": status_bytes("VmHWM"),
        "peak_bytes_beyond_start": status_bytes("VmHWM") - start_bytes,
        "written_bytes": stats.written_bytes // job.steps if stats else 0,
        "read_bytes": stats.read_bytes // job.steps if stats else 0,
        "waiting_bytes_peak": stats.waiting_bytes_peak if stats else 0,
        "disk_bytes": stats.disk_bytes if stats else 0,
    }


def run_arm(arm: str, job: Job, directory: str) -> dict[str, Any]:
    """One arm, in a process of its own."""
    values = [job.layers, job.width, job.context, job.batch, job.steps]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.offload_activations", "--arm", arm, "--dir", directory,
         "--job", ",".join(map(str, values))],
        capture_output=True, text=True, cwd=SOURCE, check=False,
        env={**os.environ, "GLIBC_TUNABLES": TUNABLES},
    )  # fmt: skip
    if done.returncode != 0:
        raise LuwuError(f"arm {arm} failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def disk_bytes_per_s(directory: str, nbytes: int) -> dict[str, float]:
    """A file of so many bytes: written in pieces with a flush at the end, then read from disk."""
    piece = bytes(min(nbytes, 16 * 2**20))
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:

        def write() -> None:
            for _ in range(max(1, nbytes // len(piece))):
                file.write(piece)
            os.fsync(file.fileno())

        def read() -> None:
            file.seek(0)
            while file.read(len(piece)):
                pass

        written_s = harness.timed(write)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        read_s = harness.timed(read)
        size = file.tell()
    return {"write_bytes_per_s": size / written_s, "read_bytes_per_s": size / read_s}


def status_bytes(field: str) -> int:
    """A field of /proc/self/status."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LuwuError(f"/proc/self/status has no {field}")


def rows_of(found: dict[str, list[dict[str, Any]]], job: Job) -> list[Row]:
    """What was measured. Raises LuwuError if the arms' losses differ."""
    losses = [run["losses"] for runs in found.values() for run in runs]
    if any(each != losses[0] for each in losses):
        raise LuwuError(f"the arms trained the same job, but their losses are {losses}")
    rows = []
    for arm, runs in found.items():
        seconds = [value for run in runs for value in run["seconds"]]
        middle = sorted(runs, key=lambda run: run["peak_bytes_beyond_start"])[len(runs) // 2]
        more = {name: middle[name] for name in middle if name not in ("seconds", "losses")}
        rows.append(
            harness.row(
                "checkpointed blocks", arm, seconds, dtype="float32", layers=job.layers,
                width=job.width, context=job.context, batch=job.batch,
                input_bytes=job.input_bytes, inputs_bytes=job.input_bytes * job.layers, **more,
            )
        )  # fmt: skip
    return rows


def claims(rows: list[Row]) -> dict[str, float]:
    """Ratios within this run."""
    by_arm = {each["arm"]: each for each in rows}

    def ratio(name: str, arm: str, other: str) -> float:
        return float(by_arm[arm][name]) / float(by_arm[other][name])

    return {
        "checkpoint_memory_ratio": ratio("peak_bytes_beyond_start", "checkpoint", "none"),
        "offload_memory_ratio": ratio("peak_bytes_beyond_start", "offload", "checkpoint"),
        "offload_seconds_ratio": ratio("seconds_median", "offload", "checkpoint"),
    }


def main() -> int:
    """Measure as the command line says."""
    parser = harness.flags("offload_activations", __doc__ or "")
    parser.add_argument("--dir", help="where the file is; a temporary directory unless given")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    directory = arguments.dir or tempfile.gettempdir()
    if arguments.arm:
        names = ("layers", "width", "context", "batch", "steps")
        values = [int(text) for text in arguments.job.split(",")]
        job = Job(**dict(zip(names, values, strict=True)))
        json.dump(train(arguments.arm, job, directory), sys.stdout)
        return 0
    try:
        return _measure(arguments, directory)
    except LuwuError as error:
        say(f"offload_activations: {error}")
        return error.exit_code


def _measure(arguments: argparse.Namespace, directory: str) -> int:
    job = SMALL if arguments.smoke else REAL
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}

    def run(arm: str) -> float:
        say(arm)
        found[arm].append(run_arm(arm, job, directory))
        return harness.median(found[arm][-1]["seconds"])

    repeats = arguments.repeats or (1 if arguments.smoke else 3)
    harness.interleave({arm: partial(run, arm) for arm in ARMS}, repeats)
    rows = rows_of(found, job)
    disk = disk_bytes_per_s(directory, min(job.input_bytes * job.layers, DISK_BYTES_MAX))
    _show(rows, disk)
    result = harness.document(
        "offload_activations", rows, claims(rows), claims_meaning=MEANINGS, disk=disk
    )
    harness.write(arguments.json, result)
    return 0


def _show(rows: list[Row], disk: dict[str, float]) -> None:
    headings = ("arm", "s a step", "spread", "peak", "beyond start", "to disk a step")
    lines = [
        (
            each["arm"], f"{each['seconds_median']:.3f}", f"{each['seconds_spread']:.0%}",
            format_bytes(each["peak_bytes"]), format_bytes(each["peak_bytes_beyond_start"]),
            format_bytes(each["written_bytes"]),
        )
        for each in rows
    ]  # fmt: skip
    harness.print_table(headings, lines)
    say(
        f"inputs of all blocks: {format_bytes(rows[0]['inputs_bytes'])}; the disk writes "
        f"{disk['write_bytes_per_s'] / 1e9:.2f} and reads {disk['read_bytes_per_s'] / 1e9:.2f} GB/s"
    )


if __name__ == "__main__":
    raise SystemExit(main())
