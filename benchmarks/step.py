"""How long is a whole training step, where the exchange decides and where the compute does?

Metric:   seconds of a step of `workers/train.py`: forward, backward, update, from the last worker's
          end of a step to that of the next; the median over steps and repeats, without the first
          steps of each run.
Floor:    compute-only: the same script, model and batches, and no exchange or update.
Cases:    exchange-bound: 32 tokens a worker; compute-bound: as many as it takes for compute-only to
          need a second. LuWu in RAM (durability none), with a switch process and without one;
          out of core, with one, and a memory budget of the optimizer state, a half and an eighth of
          it (durability process; the same arms with `step` at the end: durability step).
          clipped: exchange-bound, by `max_grad_norm`, in both orders of work, where no step is
          above the limit, and where all are.
Left out: start and end of the runs; losses and weights, which the tests compare.

Every arm gets the same processes and threads. Arms take turns, each in a run of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Row, say
from benchmarks.training import COMPUTE_ONLY, Run, Training, TrainingRuns, temporary_directory
from luwu.base.errors import ConfigError, LuwuError

STATE_BYTES_PER_PARAMETER = 12
COMPUTE_SECONDS_MIN = 1.0
BATCH_MAX = 1024
KEPT = ("overlap", "memory_budget_bytes", "disk_bytes", "node_peak_rss_bytes")
"""Fields of `luwu compare` that stand in a row."""
RAM, NO_SWITCH = "luwu ram", "luwu ram no-switch"
BASELINES = ("fsdp", "ddp", COMPUTE_ONLY)
SHARES = {"1": 1.0, "1/2": 0.5, "1/8": 0.125}
DURABILITIES = {"process": "", "step": " step"}
"""Out of core, and how the names of their arms end."""
LARGE = Training(layers=8, width=512, context=32, batch=1, workers=4, steps=12)
"""25.4 M parameters."""
SMALL = Training(layers=2, width=96, context=16, batch=1, workers=2, steps=3)

EXCHANGE, COMPUTE, CLIPPED = "exchange-bound", "compute-bound", "clipped"
CASES = (EXCHANGE, COMPUTE, CLIPPED)
LIMITS = {"never": "1e9", "always": "1e-6"}
"""How often a step is above a limit."""
MEANINGS = {
    "exchange_bound_over_fsdp": "time of fsdp / time of luwu in RAM; more is better",
    "exchange_bound_over_ddp": "time of ddp / time of luwu in RAM; more is better",
    "exchange_bound_over_fsdp_no_switch": "the same, workers and node alone",
    "exchange_bound_over_ddp_no_switch": "the same, workers and node alone",
    "compute_bound_over_compute_only": "time of luwu in RAM / time of compute-only; less is better",
    "out_of_core_over_ram": "time of luwu at the worst budget / in RAM, compute-bound, durability "
    "process; less is better",
    "out_of_core_over_ram_step": "the same, durability step",
    "pages_updated_before_last_push_ratio": "compute-bound, luwu in RAM; more is better",
    "pull_before_use_ratio": "compute-bound, luwu in RAM; more is better",
}


class Case:
    """One job by all arms, in turns."""

    def __init__(self, name: str, job: Training, runs: TrainingRuns, *, state_bytes: int) -> None:
        self.name, self._job = name, job
        self._last: dict[str, Run] = {}
        self._runs = runs
        in_ram = {"durability": "none"}
        self._arms: dict[str, Callable[[], list[float]]] = {
            RAM: partial(self._run, RAM, "luwu", in_ram),
            NO_SWITCH: partial(self._run, NO_SWITCH, "luwu", {**in_ram, "no_switch": "true"}),
        }
        for text, share in SHARES.items():
            for durability, end in DURABILITIES.items():
                flags = {"durability": durability, "memory_budget": f"{int(share * state_bytes)}B"}
                arm = f"luwu budget {text}{end}"
                self._arms[arm] = partial(self._run, arm, "luwu", flags)
        for arm in BASELINES:
            self._arms[arm] = partial(self._run, arm, arm, {})
        if name == CLIPPED:
            out_of_core = {"durability": "process", "memory_budget": f"{state_bytes // 8}B"}
            self._arms = {
                f"luwu {order}; {often};{where}": partial(
                    self._run, f"luwu {order}; {often};{where}", "luwu",
                    {**flags, "max_grad_norm": limit}, ("--update", order),
                )
                for where, flags in ((" ram", in_ram), (" budget 1/8", out_of_core))
                for often, limit in LIMITS.items()
                for order in ("at_step", "streaming")
            }  # fmt: skip

    def measure(self, repeats: int, only: list[str] | None) -> list[Row]:
        """All arms, or some."""
        arms = {name: arm for name, arm in self._arms.items() if only is None or name in only}
        seconds = harness.interleave(arms, repeats)
        rows = []
        for arm, found in seconds.items():
            document = self._last[arm].document
            rows.append(
                harness.row(
                    self.name, arm, found, workers=self._job.workers, dtype="float32",
                    switch=arm != NO_SWITCH if arm.startswith("luwu") else None,
                    tokens_per_worker=self._job.batch * self._job.context,
                    worker_peak_rss_bytes=max(document["worker_peak_rss_bytes"]),
                    **{name: document[name] for name in KEPT},
                )
            )  # fmt: skip
        return rows

    def _run(
        self, name: str, arm: str, flags: dict[str, str], options: Sequence[str] = ()
    ) -> list[float]:
        say(f"{self.name}: {name}")
        self._last[name] = self._runs.run(arm, self._job, flags, options)
        return self._last[name].step_seconds


def state_bytes(job: Training) -> int:
    """Optimizer state of the job's GPT."""
    import torch

    from workers.data import BYTE_VOCAB
    from workers.gpt import GPT
    from workers.options import Options

    options = Options(arm="luwu", layers=job.layers, width=job.width, context=job.context)
    with torch.device("meta"):
        model = GPT(options.gpt(BYTE_VOCAB))
    return STATE_BYTES_PER_PARAMETER * sum(each.numel() for each in model.parameters())


def compute_bound(job: Training, runs: TrainingRuns) -> Training:
    """The job with as many tokens as make compute-only take a second a step."""
    job = replace(job, context=128)
    while job.batch < BATCH_MAX:
        trial = runs.run(COMPUTE_ONLY, replace(job, steps=5))
        seconds = harness.median(trial.step_seconds)
        say(f"{job.batch * job.context} tokens a worker: compute takes {seconds:.2f} s")
        if seconds >= COMPUTE_SECONDS_MIN:
            break
        factor = 2 if seconds > COMPUTE_SECONDS_MIN / 3 else 4
        job = replace(job, batch=job.batch * factor)
    return job


def claims(rows: list[Row]) -> dict[str, float]:
    """What was measured of `MEANINGS`."""
    seconds = {(each["case"], each["arm"]): each["seconds_median"] for each in rows}
    found = {}
    for ours, end in ((RAM, ""), (NO_SWITCH, "_no_switch")):
        for baseline in ("fsdp", "ddp"):
            pair = (EXCHANGE, baseline), (EXCHANGE, ours)
            if seconds.keys() >= set(pair):
                found[f"exchange_bound_over_{baseline}{end}"] = seconds[pair[0]] / seconds[pair[1]]
    ram = seconds.get((COMPUTE, RAM))
    if ram is None:
        return found
    if (COMPUTE, COMPUTE_ONLY) in seconds:
        found["compute_bound_over_compute_only"] = ram / seconds[COMPUTE, COMPUTE_ONLY]
    for end in DURABILITIES.values():
        arms = [(COMPUTE, f"luwu budget {share}{end}") for share in SHARES]
        found_seconds = [seconds[arm] for arm in arms if arm in seconds]
        if found_seconds:
            found["out_of_core_over_ram" + end.replace(" ", "_")] = max(found_seconds) / ram
    overlap = next(r["overlap"] for r in rows if (r["case"], r["arm"]) == (COMPUTE, RAM))
    return found | {name: value for name, value in overlap.items() if value is not None}


def main() -> int:
    """Run the cases the flags ask for."""
    parser = harness.flags("step", __doc__ or "")
    parser.add_argument("--arms", type=harness.comma_list, help="luwu ram,luwu budget 1/8,fsdp,...")
    parser.add_argument("--cases", type=harness.comma_list, default=[EXCHANGE, COMPUTE])
    parser.add_argument("--case", metavar="NAME", help=f"this one alone: {', '.join(CASES)}")
    try:
        return _run(parser.parse_args())
    except LuwuError as error:
        say(f"step: {error}")
        return error.exit_code


def _run(arguments: argparse.Namespace) -> int:
    job = SMALL if arguments.smoke else LARGE
    repeats = arguments.repeats or (1 if arguments.smoke else 2)
    rows: list[Row] = []
    names = arguments.cases if arguments.case is None else [arguments.case]
    for name in names:
        if name not in CASES:
            raise ConfigError(f"no case {name!r}; there are {', '.join(CASES)}")
    with temporary_directory() as folder:
        runs = TrainingRuns(Path(folder))
        for name in names:
            if name == COMPUTE and not arguments.smoke:
                job = compute_bound(job, runs)
            case = Case(name, job, runs, state_bytes=state_bytes(job))
            new = case.measure(repeats, arguments.arms)
            _show(name, new)
            rows += new
    result = harness.document(
        "step", rows, claims(rows), claims_meaning=MEANINGS, smoke=arguments.smoke
    )
    harness.write(arguments.json, result)
    return 0


def _show(name: str, rows: list[Row]) -> None:
    say(f"\n{name}, {rows[0]['workers']} workers, {rows[0]['tokens_per_worker']} tokens each")
    lines = []
    for each in rows:
        early = [each["overlap"][key] for key in sorted(each["overlap"])]
        ratios = ["-" if ratio is None else f"{ratio:.0%}" for ratio in early]
        seconds = (f"{each['seconds_median']:.3f}", f"{each['seconds_spread']:.0%}")
        lines.append((each["arm"], *seconds, *ratios))
    harness.print_table(("arm", "s a step", "spread", "updated early", "pulled early"), lines)


if __name__ == "__main__":
    raise SystemExit(main())
