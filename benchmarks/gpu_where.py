"""Where does a step go on a GPU? What it waits for, by unit and cause, and what the host could do.

    python -m benchmarks.gpu_where --json benchmarks/results/gpu_where_CARD_DATE.json
    python -m benchmarks.gpu_where --smoke     a small model on a CPU, with streams that are threads

Metric:   seconds of a step of LuWu and of plain torch, by tokens a step; and of LuWu's:
          - the compute stream's idle time by cause and unit (`gpu_idle.py`);
          - how long before its use each unit's weights were there;
          - processor time by thread of the worker, and, where `py-spy` is on the PATH, who held
            Python's lock: of worker, switch and node, in a run of its own.
Floor:    what this host and this card can do: bytes/s of a plain copy in memory and of the update
          kernel, by threads; bytes/s of copies from and to pinned memory, by size, each way alone
          and both at once; and from these the tokens a step that hide each (b F / 6 B: b bytes a
          parameter at B bytes/s, F operations/s of compute as measured here).
Checked:  losses of LuWu and of plain torch at the same tokens.
Left out: start and end of the runs, and the steps that are profiled.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import gpu_arms, harness, update
from benchmarks.gpu_idle import CAUSES, Activity, arrivals, compute_on_host, idle
from benchmarks.gpu_worker import PROFILED_STEPS
from benchmarks.harness import Row, say
from benchmarks.training import Run, Training, TrainingRuns
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import LuwuError
from luwu.report.event_files import records
from switch_emu.node.kernels.make import make_kernel

LUWU, SINGLE = gpu_arms.LUWU, gpu_arms.SINGLE
SMALL = replace(gpu_arms.SMALL, layers=4, width=256, context=64, batch=4, steps=14)
PINNED_BYTES = tuple(mib << 20 for mib in (4, 16, 64))
UPDATE_ELEMS = 100_000_000
FLOPS_A_PARAMETER = 6
"""Operations of forward and backward, a parameter and token."""
BYTES_A_PARAMETER = {"weights down twice": 4, "gradients up": 2, "update in memory": 30}
"""Bytes that a step moves, with bfloat16 on the wire and AdamW in one pass."""
UNITS_SHOWN = 8


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    """Run it; the result."""
    parser = harness.flags("gpu_where", __doc__ or "")
    parser.add_argument(
        "--tokens", type=harness.counts, default=None, metavar="N,...",
        help="tokens a step instead of 16384,32768,65536",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, default=1, help="workers of LuWu, on this GPU")
    arguments = parser.parse_args(words)
    gpus = torch.cuda.device_count()
    job = SMALL if arguments.smoke or not gpus else gpu_arms.LARGE
    usual = [job.batch * job.context * times for times in ((1,) if job is SMALL else (1, 2, 4))]
    rates = host_rates(is_small=arguments.smoke)
    with tempfile.TemporaryDirectory(prefix="luwu-where-") as folder:
        found = _Found(Path(folder), gpus)
        for tokens in arguments.tokens or usual:
            batch, rest = divmod(tokens, job.context * arguments.workers)
            if rest or not batch:
                raise LuwuError(
                    f"--tokens {tokens} is no multiple of {job.context * arguments.workers}"
                )
            ours = replace(job, batch=batch, workers=arguments.workers)
            found.run(LUWU, ours)
            found.run(SINGLE, replace(ours, batch=batch * arguments.workers, workers=1))
        found.who_holds_the_lock(replace(job, workers=arguments.workers))
    claims = claims_of(found.rows, rates)
    result = harness.document(
        "gpu_where", found.rows, claims, device=torch.cuda.get_device_name() if gpus else "cpu",
        is_gpu_result=gpus > 0, rates=rates, lock=found.lock,
    )  # fmt: skip
    show(result)
    harness.write(arguments.json, result)
    return result


class _Found:
    """Runs, and what was found of each."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self._gpus = gpus
        self._runs = TrainingRuns(folder, script=("-m", "benchmarks.gpu_where_worker"))
        self._flags = {"dtype": "bfloat16" if gpus else "float32", **gpu_arms.LUWU_FLAGS}
        self.rows: list[Row] = []
        self.lock: dict[str, Any] | None = None

    def run(self, arm: str, job: Training) -> None:
        """Measure an arm; of LuWu, where its steps go."""
        tokens = job.batch * job.context * job.workers
        say(f"{arm} N={job.workers}, {tokens} tokens")
        done = self._runs.run(arm, job, self._flags)
        row = gpu_arms.row_of(f"{arm} {tokens}", arm, done, self._gpus)
        row["thread_seconds"] = done.workers[0]["thread_seconds"]
        if arm == LUWU:
            row |= where(done)
        else:
            check_losses(self.rows[-1]["loss"], row["loss"])
        self.rows.append(row)

    def who_holds_the_lock(self, job: Training) -> None:
        """One more run, watched from outside."""
        program = shutil.which("py-spy")
        if program is None:
            say("who holds Python's lock is not known: py-spy is not on the PATH")
            return
        file = self._runs.directory / "lock.txt"
        with _watched(program, file):
            self._runs.run(LUWU, job, self._flags)
        self.lock = lock_shares(file.read_text(encoding="utf-8", errors="replace").splitlines())


def check_losses(ours: Sequence[float], theirs: Sequence[float]) -> None:
    """Raise LuwuError if they did not train the same."""
    if not np.allclose(ours, theirs, gpu_arms.LOSS_RELATIVE, 0):
        raise LuwuError(f"the losses of LuWu and of plain torch differ: {ours} and {theirs}")


def where(run: Run) -> dict[str, Any]:
    """Where the last steps of worker 0 of a run went."""
    record = run.workers[0]
    found = record["activity"]
    if found is None:
        return {"idle": None, "arrivals": None}
    spans = [
        each for each in records(run.directory / "events" / "worker-0.jsonl") if "end_ns" in each
    ]
    last = record["steps"]
    steps = range(last - PROFILED_STEPS, last)
    compute = found["compute"]
    if compute is None:
        compute = compute_on_host(each for each in spans if each.get("step") in steps)
    activity = Activity(
        compute=[tuple(each) for each in compute],
        copies_in=[tuple(each) for each in found["copies_in"]],
        copies_out=[tuple(each) for each in found["copies_out"]],
    )
    went = idle(activity, spans, steps)
    early_ms: dict[str, list[float]] = defaultdict(list)
    for each in arrivals(spans, range(record["first_step"], last)):
        early_ms[each.unit].append(each.early_ns / 1e6)
    return {
        "idle": None if went is None else asdict(went),
        "arrivals": {
            unit: {
                "early_ms_median": harness.median(values),
                "late_ratio": sum(value < 0 for value in values) / len(values),
            }
            for unit, values in early_ms.items()
        },
    }


# ---------------------------------------------------------------------- Python's lock


@contextmanager
def _watched(program: str, file: Path) -> Iterator[None]:
    """Sample this process and those that it starts: who holds Python's lock."""
    watcher = subprocess.Popen(
        [
            program, "record", "--gil", "--threads", "--subprocesses", "--nonblocking", "--format",
            "raw", "--rate", "200", "--duration", "600", "--output", str(file), "--pid",
            str(os.getpid()),
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        watcher.send_signal(signal.SIGINT)
        watcher.wait(timeout=60)


_PROCESS = re.compile(r"(?:^|;)process \d+:")
_HOLDER = re.compile(r".*;thread \(\w+\)(?:: ([^;]*?))?(?:;.*)? (\d+)")
"""A thread, and its samples."""


def lock_shares(lines: Sequence[str]) -> dict[str, dict[str, float]]:
    """By process, then by thread: its share of the samples in which that process's lock was
    held. `lines`: py-spy's raw format: processes from ours to the one that was sampled, its thread,
    its frames, and how often."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in lines:
        _, *processes = _PROCESS.split(line)
        found = _HOLDER.fullmatch(processes[-1]) if processes else None
        role = _role(processes)
        if found is not None and role is not None:
            counts[role][found[1] or "without a name"] += int(found[2])
    return {
        role: {
            name: count / sum(threads.values())
            for name, count in sorted(threads.items(), key=lambda each: -each[1])
        }
        for role, threads in counts.items()
    }


def _role(processes: Sequence[str]) -> str | None:
    """The role of the last of these processes, each a child of the one before."""
    if len(processes) < 2:
        return None
    parent, own = processes[-2:]
    if "luwu.launch.agent" in own and "luwu.launch.processes.guard" not in parent:
        return "worker"  # the agent runs under a guard, and starts the worker
    return next((role for role in ("switch", "node") if f"switch_emu {role}" in own), None)


# ---------------------------------------------------------------------- what the host could do


def host_rates(*, is_small: bool) -> dict[str, Any]:
    """Bytes/s of memory, of the update kernel and of pinned copies."""
    cores = harness.core_count()
    threads = [count for count in (1, 2, 4, 8, 16) if count <= cores]
    nbytes = update.SMOKE.copy_bytes if is_small else update.REAL.copy_bytes
    say("rates of this host")
    return {
        "copy_bytes_per_s": {n: harness.copy_bytes_per_s(n, nbytes) for n in threads},
        "update_bytes_per_s": _update_rates(threads, is_small=is_small),
        "pinned_bytes_per_s": _pinned_rates() if torch.cuda.is_available() else None,
    }


def _update_rates(threads: Sequence[int], *, is_small: bool) -> dict[int, float]:
    """Bytes/s of the node's update kernel by threads, with one gradient in bfloat16."""
    sizes = update.SMOKE if is_small else replace(update.REAL, elems=(UPDATE_ELEMS,))
    memory, kernel = update.Memory(sizes), make_kernel("adamw", ("m", "v"), cache=None).kernel
    arm = update.update_arm("kernel", kernel, memory, 1, "bfloat16")
    elems = max(sizes.elems)
    pages = [
        slice(at, min(at + sizes.page_elems, elems)) for at in range(0, elems, sizes.page_elems)
    ]
    found = {}
    for count in threads:
        seconds = [update.run_pages(arm, pages, count) for _ in range(4)]
        found[count] = arm.bytes_per_elem * elems / harness.median(seconds[1:])
    return found


def _pinned_rates(repeats: int = 20) -> dict[str, dict[int, float]]:
    """By way and size: bytes/s of copies between pinned memory and the device."""
    ways = {"in": (True, False), "out": (False, True), "both": (True, True)}
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    found: dict[str, dict[int, float]] = {way: {} for way in ways}
    for nbytes in PINNED_BYTES:
        pinned = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) for _ in streams]
        there = [torch.empty(nbytes, dtype=torch.uint8, device="cuda") for _ in streams]
        for way, (is_in, is_out) in ways.items():
            for _warm in range(2):  # the first warms up
                torch.cuda.synchronize()
                start_ns = SYSTEM_CLOCK.now_ns()
                for _ in range(repeats):
                    if is_in:
                        with torch.cuda.stream(streams[0]):
                            there[0].copy_(pinned[0], non_blocking=True)
                    if is_out:
                        with torch.cuda.stream(streams[1]):
                            pinned[1].copy_(there[1], non_blocking=True)
                torch.cuda.synchronize()
                seconds = (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
            found[way][nbytes] = nbytes * repeats * (is_in + is_out) / seconds
    return found


# ---------------------------------------------------------------------- the result


def claims_of(rows: Sequence[Row], rates: Mapping[str, Any]) -> dict[str, float]:
    """Ratios within this run, and the tokens a step that hide what a step moves."""
    by_case = {row["case"]: row for row in rows}
    claims = {}
    for row in rows:
        if row["arm"] != LUWU:
            continue
        tokens = row["tokens_per_step"]
        other = by_case[f"{SINGLE} {tokens}"]
        claims[f"speed_over_single_{tokens}"] = row["tokens_per_s"] / other["tokens_per_s"]
        flops_per_s = FLOPS_A_PARAMETER * row["parameters"] * other["tokens_per_s"]
        for what, nbytes in BYTES_A_PARAMETER.items():
            rate = _rate_of(what, rates)
            if rate is not None:
                claims[f"tokens that hide {what}, at {tokens}"] = (
                    nbytes * flops_per_s / (FLOPS_A_PARAMETER * rate)
                )
    return claims


def _rate_of(what: str, rates: Mapping[str, Any]) -> float | None:
    if what == "update in memory":
        return max(rates["update_bytes_per_s"].values())
    pinned = rates["pinned_bytes_per_s"]
    return None if pinned is None else max(pinned["in" if "down" in what else "out"].values())


def show(result: Mapping[str, Any]) -> None:
    """The tables for people."""
    for row in result["rows"]:
        say(f"{row['case']}: {row['seconds_median'] * 1e3:.1f} ms a step")
        went = row.get("idle")
        if went is not None:
            _show_idle(went)
        if row["arm"] == LUWU:
            threads = sorted(row["thread_seconds"].items(), key=lambda each: -each[1])
            harness.print_table(
                ("thread", "processor ms a step"),
                [(name, f"{seconds * 1e3:.2f}") for name, seconds in threads if seconds > 1e-4],
            )
    for role, threads in (result["lock"] or {}).items():
        say(f"{role}: " + ", ".join(f"{name} {share:.0%}" for name, share in threads.items()))
    for name, value in result["claims"].items():
        say(f"{name}: {value:.3g}")


def _show_idle(went: Mapping[str, Any]) -> None:
    steps = went["steps"]

    def ms(nanoseconds: float) -> str:
        return f"{nanoseconds / steps / 1e6:.2f}"

    by_unit = sorted(went["by_unit_ns"].items(), key=lambda each: -sum(each[1].values()))
    rows = [("all", went["by_cause_ns"]), *by_unit[:UNITS_SHOWN]]
    harness.print_table(
        ("idle before", *CAUSES),
        [(name, *(ms(causes[cause]) for cause in CAUSES)) for name, causes in rows],
    )
    for way in ("in", "out"):
        share = went[f"{way}_behind_compute"]
        say(f"copies {way} behind compute: {'-' if share is None else f'{share:.0%}'}")
    say(f"{ms(went['length_ns'])} ms from the first kernel to the last, {ms(went['busy_ns'])} busy")


if __name__ == "__main__":
    main()
