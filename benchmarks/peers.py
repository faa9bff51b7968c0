"""How long is a step out of core beside ZeRO-Infinity, and beside what keeps its state in RAM?

Metric:   seconds of a step of `workers/train.py`, from the last worker's end of a step to that of
          the next; the median over steps and repeats, without the first steps of each run.
Arms:     luwu             out of core, durability step; in the budget of the case
          luwu-in-ram      its state in RAM and as durable: each step writes its sums to disk
          luwu-cached      as luwu, with a switch that has room for all weights; left out where
                           luwu's has, by default
          ps               as luwu without a switch: a parameter server, which takes the gradient
                           of every worker and sends each one its copy of the weights
          zero-infinity    DeepSpeed's, all on the same disk; what it wrote survives nothing
          zero3-offload    the same without the disk: state in RAM
          fsdp, fsdp_offload, ddp   torch's, in RAM
          compute-only     forward and backward alone
          exchange-only    what ZeRO-3 sends per step and nothing else: all-gathers of all weights,
                           twice, and a reduce-scatter, over gloo and without DeepSpeed
Cases:    25m-32, 25m-512  25.5 M parameters, 2 workers of 32 and 512 tokens, 1/8 of the state
          25m-4            4 workers of 32 tokens, the same budget
          397m             396.8 M parameters, 2 workers of 32 tokens, budget 1 GiB
Gloo:     exchange-only is what gloo takes at least; of the ratio to ZeRO-Infinity, that to
          zero3-offload is there without any disk, and `without gloo` is what stays if a peer's
          exchange cost nothing and hid nothing.
Disk:     bytes of a step by the kernel's count (/proc/PID/io) of node or workers, without what is
          written once at the start and read once for the digest at the end.
Checked:  all arms have luwu's losses in the first steps, to 2e-5, and train as many.
Left out: start and end of the runs; GPUs; other settings of DeepSpeed than `peers_zero.py` has.

    pip install 'deepspeed>=0.19.8,<0.20'    (g++, Python's headers; libaio-dev for zero-infinity)
    python -m benchmarks.peers --cases 25m-32 --repeats 2 --json FILE
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.exchange_arms import gloo_arm
from benchmarks.exchange_model import Job
from benchmarks.harness import Row, say
from benchmarks.peers_libraries import (
    INFINITY,
    OFFLOAD,
    SWAP,
    ZERO_ARMS,
    check_deepspeed,
    libraries,
)
from benchmarks.step import STATE_BYTES_PER_PARAMETER, state_bytes
from benchmarks.training import COMPUTE_ONLY, Run, Training, TrainingRuns, temporary_directory
from luwu.base.errors import ConfigError, LuwuError
from switch_emu.switch.plan import BUDGET_AUTO_MAX

LUWU, IN_RAM, CACHED, SERVER = "luwu", "luwu-in-ram", "luwu-cached", "ps"
OURS = (LUWU, IN_RAM, CACHED, SERVER)
EXCHANGE_ONLY = "exchange-only"
TRAINING = (*OURS, INFINITY, OFFLOAD, "fsdp", "fsdp_offload", "ddp")
ARMS = (*TRAINING, COMPUTE_ONLY, EXCHANGE_ONLY)
LOSS_STEPS, LOSS_OFF_MAX = 4, 2e-5
EXCHANGES = 5
"""In each turn of exchange-only, after one that is not counted."""
IN_RAM_BESIDE = 2**30
"""Bytes of RAM beside two sides of the state and its sums: weights on their way, what is fixed."""
WEIGHTS_SHARE = 4 / STATE_BYTES_PER_PARAMETER
MEANINGS = {
    f"{IN_RAM} over luwu": "step time with the state in RAM / out of core, both durable; less",
    f"{INFINITY} over {IN_RAM}": "step time of ZeRO-Infinity / of what is in RAM and durable",
    f"{OFFLOAD} over {IN_RAM}": "the same of ZeRO-3 offload, which is in RAM and not durable",
    f"fsdp_offload over {IN_RAM}": "the same of FSDP2 with CPUOffloadPolicy",
    f"{CACHED} over luwu": "step time with all weights in the switch's cache / by default; less",
    f"{SERVER} over luwu": "step time without a switch / that of luwu",
    f"{INFINITY} over luwu": "step time of ZeRO-Infinity / that of luwu; more is better",
    f"{OFFLOAD} over luwu": "the same without the peer's disk",
    f"{INFINITY} without gloo over luwu": "(step time of ZeRO-Infinity - exchange-only) / luwu's",
    "gloo's share": f"exchange-only / step time of {INFINITY}: at least so much of it is gloo",
    "fsdp over luwu": "FSDP2, in RAM; more is better for luwu",
    "fsdp_offload over luwu": "the same with CPUOffloadPolicy",
    "ddp over luwu": "DDP, in RAM",
    f"disk bytes of {INFINITY}'s": "luwu's per step / ZeRO-Infinity's; less is better",
    "disk bytes over least": "luwu's per step / (state written and read - budget); less is better",
    f"disk bytes of {INFINITY}'s, cached": f"the first of {CACHED}",
    "disk bytes over least, cached": f"the second of {CACHED}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job, and the memory budget of luwu's node."""

    job: Training
    budget_bytes: int | None = None
    """None: an eighth of the state."""
    has_cached_arm: bool = False
    """By default the switch has no room for all weights, so LuWu is measured with one that has."""

    @property
    def budget(self) -> int:
        return self.budget_bytes or self.state // 8

    def memory_budget(self, arm: str) -> int:
        """Bytes of RAM for the node of an arm."""
        return 3 * self.state + IN_RAM_BESIDE if arm == IN_RAM else self.budget

    @property
    def state(self) -> int:
        """Bytes of weights and optimizer state."""
        return state_bytes(self.job)

    @property
    def weights(self) -> int:
        """Bytes of weights."""
        return int(self.state * WEIGHTS_SHARE)

    def flags(self, arm: str) -> dict[str, str]:
        """Flags of `luwu compare` for an arm."""
        if arm not in OURS:
            return {}
        flags = {"memory_budget": f"{self.memory_budget(arm)}B", "durability": "step"}
        if arm == CACHED:
            flags["switch_memory_budget"] = f"{BUDGET_AUTO_MAX + self.weights}B"
        if arm == SERVER:
            flags["no_switch"] = "true"
        return flags

    def arms(self, arms: list[str]) -> list[str]:
        """Those of `arms` that are not another one by another name."""
        return [arm for arm in arms if arm != CACHED or self.has_cached_arm]


SMALL = Training(layers=2, width=96, context=16, batch=1, workers=2, steps=4)
M25 = {"layers": 8, "width": 512, "context": 32, "steps": 13}
CASES = {
    "25m-32": Case(job=Training(**M25, batch=1, workers=2)),
    "25m-512": Case(job=Training(**M25, batch=16, workers=2)),
    "25m-4": Case(job=Training(**M25, batch=1, workers=4)),
    "397m": Case(
        job=Training(layers=14, width=1536, context=32, batch=1, workers=2, steps=6),
        budget_bytes=2**30,
        has_cached_arm=True,
    ),
}


class Measurement:
    """One case by all arms, in turns."""

    def __init__(
        self, name: str, case: Case, runs: TrainingRuns, environ: Mapping[str, str]
    ) -> None:  # fmt: skip
        """`environ`: that of DeepSpeed's ranks."""
        self.name, self._case, self._runs, self._environ = name, case, runs, environ
        self._last: dict[str, Run] = {}

    def measure(self, arms: list[str], repeats: int) -> list[Row]:
        """A row for each arm. Raises LuwuError where losses differ."""
        turns = {
            arm: self._exchange if arm == EXCHANGE_ONLY else partial(self._run, arm)
            for arm in self._case.arms(arms)
        }
        seconds = harness.interleave(turns, repeats)
        return [self._row(arm, found) for arm, found in seconds.items()]

    def _run(self, arm: str) -> list[float]:
        say(f"{self.name}: {arm}")
        if arm in ZERO_ARMS:
            run = self._zero(arm)
        else:
            trainer = LUWU if arm in OURS else arm
            run = self._runs.run(trainer, self._case.job, self._case.flags(arm))
        self._last[arm] = run
        losses = run.document["loss"]
        reference = self._last.get(LUWU)
        if arm != COMPUTE_ONLY and reference is not None:
            check_losses(arm, losses, reference.document["loss"])
        return run.step_seconds

    def _zero(self, arm: str) -> Run:
        swap = self._runs.directory / INFINITY
        swap.mkdir()
        environ = {**self._environ, SWAP: str(swap) if arm == INFINITY else ""}
        try:
            return self._runs.run_module("benchmarks.peers_zero", self._case.job, environ=environ)
        finally:
            shutil.rmtree(swap)

    def _exchange(self) -> list[float]:
        say(f"{self.name}: {EXCHANGE_ONLY}")
        parameters = self._case.state // STATE_BYTES_PER_PARAMETER
        job = Job(params=parameters, workers=self._case.job.workers)
        with gloo_arm(job, EXCHANGE_ONLY) as arm:
            arm.step()
            found = [arm.step() for _ in range(EXCHANGES)]
            arm.leave()
        return found

    def _row(self, arm: str, seconds: list[float]) -> Row:
        job, case = self._case.job, self._case
        run = self._last.get(arm)
        document = {} if run is None else run.document
        return harness.row(
            self.name, arm, seconds, workers=job.workers, dtype="float32",
            tokens_per_worker=job.batch * job.context,
            tokens_per_s=job.workers * job.batch * job.context / harness.median(seconds),
            state_bytes=case.state, budget_bytes=case.memory_budget(arm) if arm in OURS else None,
            loss=document.get("loss"), disk_bytes_per_step=disk_bytes(document, job.steps),
            worker_peak_rss_bytes=document.get("worker_peak_rss_bytes"),
            switch_peak_rss_bytes=document.get("switch_peak_rss_bytes"),
            node_peak_rss_bytes=document.get("node_peak_rss_bytes"),
            memory_peak_bytes=document.get("memory_peak_bytes"),
        )  # fmt: skip


def check_losses(arm: str, losses: list[float], reference: list[float]) -> None:
    """Raises LuwuError unless an arm trained what luwu did."""
    off = [abs(ours - theirs) for ours, theirs in zip(losses, reference, strict=False)]
    is_same = all(each <= LOSS_OFF_MAX for each in off[:LOSS_STEPS])  # not so of NaN
    if len(losses) != len(reference) or not is_same:
        raise LuwuError(
            f"{arm} and luwu did not train the same: {len(losses)} and {len(reference)} steps, "
            f"whose first losses are {off[:LOSS_STEPS]} apart; at most {LOSS_OFF_MAX:.0e} is "
            "rounding"
        )


def disk_bytes(document: dict[str, Any], steps: int) -> dict[str, float] | None:
    """Bytes of a step read from and written to disk; None for an arm that has no files."""
    kernel = document.get("disk_bytes_kernel")
    if kernel is None:
        return None
    state = document["node_state_bytes"] or 0  # DeepSpeed's ranks count from their first step on
    once = {"read": WEIGHTS_SHARE * state, "written": state}
    return {way: (kernel[way] - once[way]) / steps for way in kernel}


def claims(rows: list[Row]) -> dict[str, float]:
    """What was measured of `MEANINGS`, by case."""
    found: dict[str, float] = {}
    for case in dict.fromkeys(row["case"] for row in rows):
        arms = {row["arm"]: row for row in rows if row["case"] == case}
        if LUWU in arms:
            found |= {f"{case}: {name}": value for name, value in _claims(arms).items()}
    return found


def _claims(arms: dict[str, Row]) -> dict[str, float]:
    seconds = {arm: row["seconds_median"] for arm, row in arms.items()}
    found = {f"{arm} over luwu": seconds[arm] / seconds[LUWU]
             for arm in TRAINING if arm != LUWU and arm in arms}  # fmt: skip
    for arm in (INFINITY, OFFLOAD, "fsdp_offload"):
        if IN_RAM in arms and arm in arms:
            found[f"{arm} over {IN_RAM}"] = seconds[arm] / seconds[IN_RAM]
    for arm, which in ((LUWU, ""), (CACHED, ", cached")):
        if arm in arms:
            ours = arms[arm]
            least = 2 * ours["state_bytes"] - ours["budget_bytes"]
            found[f"disk bytes over least{which}"] = _moved(ours) / least
            if INFINITY in arms:
                found[f"disk bytes of {INFINITY}'s{which}"] = _moved(ours) / _moved(arms[INFINITY])
    if INFINITY in arms and EXCHANGE_ONLY in arms:
        gloo, whole = seconds[EXCHANGE_ONLY], seconds[INFINITY]
        found["gloo's share"] = gloo / whole
        found[f"{INFINITY} without gloo over luwu"] = (whole - gloo) / seconds[LUWU]
    return found


def _moved(row: Row) -> float:
    """Bytes read and written in a step."""
    moved: dict[str, float] = row["disk_bytes_per_step"]
    return sum(moved.values())


def main() -> int:
    """Run the cases the flags ask for."""
    parser = harness.flags("peers", __doc__ or "")
    parser.add_argument(
        "--cases", type=harness.comma_list, default=list(CASES), help=", ".join(CASES)
    )
    parser.add_argument("--arms", type=harness.comma_list, default=list(ARMS), help=", ".join(ARMS))
    try:
        return _run(parser.parse_args())
    except LuwuError as error:
        say(f"peers: {error}")
        return error.exit_code


def _run(arguments: argparse.Namespace) -> int:
    cases = (
        {"smoke": Case(job=SMALL, budget_bytes=2**20, has_cached_arm=True)}
        if arguments.smoke
        else CASES
    )
    names = list(cases) if arguments.smoke else arguments.cases
    for flag, given, known in (("cases", names, cases), ("arms", arguments.arms, ARMS)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ConfigError(f"--{flag}: no {', '.join(unknown)}; there are {', '.join(known)}")
    arms = [arm for arm in ARMS if arm in arguments.arms]
    check_deepspeed(arms)
    repeats = arguments.repeats or (1 if arguments.smoke else 2)
    rows: list[Row] = []
    with temporary_directory() as folder, libraries(arms) as environ:
        runs = TrainingRuns(Path(folder))
        for name in names:
            new = Measurement(name, cases[name], runs, environ).measure(arms, repeats)
            _show(name, new)
            rows += new
    found = claims(rows)
    for name, value in found.items():
        say(f"{name}: {value:.2f}")
    result = harness.document(
        "peers", rows, found, claims_meaning=MEANINGS, smoke=arguments.smoke,
        deepspeed=metadata.version("deepspeed") if find_spec("deepspeed") else None,
    )  # fmt: skip
    harness.write(arguments.json, result)
    return 0


def _show(name: str, rows: list[Row]) -> None:
    say(f"\n{name}: {rows[0]['workers']} workers, {rows[0]['tokens_per_worker']} tokens each")
    lines = []
    for each in rows:
        moved = each["disk_bytes_per_step"]
        disk = [f"{moved[way] / 1e6:.0f}" for way in ("read", "written")] if moved else ["-", "-"]
        peaks = [max(each["worker_peak_rss_bytes"] or [0]), each["node_peak_rss_bytes"] or 0]
        memory = [f"{peak / 2**20:.0f}" if peak else "-" for peak in peaks]
        seconds = (f"{each['seconds_median']:.3f}", f"{each['seconds_spread']:.0%}")
        lines.append((each["arm"], *seconds, f"{each['tokens_per_s']:.0f}", *memory, *disk))
    headings = ("s a step", "spread", "tokens/s", "worker MiB", "node MiB", "read MB", "written MB")
    harness.print_table(("arm", *headings), lines)


if __name__ == "__main__":
    raise SystemExit(main())
