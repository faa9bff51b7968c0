"""Does a billion parameters train out of core as it was planned? A case of `benchmarks.step`.

1,008,250,880 parameters (12 GB of state) with a budget of 1 GiB at the node, two workers of 16
tokens each, durability `process`. Floors are measured before the run and after it, with the same
large samples; the plan is what `luwu estimate` makes of those before.

Metric:   plan_error_ratio = |seconds - planned| / seconds, where seconds is the median over steps
          of the job's. The first and the last step are not counted: in the last, a
          worker waits for the norm that it logs, and so for all of the step.
Void:     if a floor of the resource that binds differs by more than a fifth before and after: then
          the disk is not the one that was planned with.
Checked:  losses finite, every step decided, bytes on disk as planned within 5 %.
Left out: whether the weights are right: too long at this size, and the tests compare it.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any, Final

from benchmarks import harness
from benchmarks.harness import Row, say
from benchmarks.training import Run, Training, TrainingRuns
from luwu.base.errors import LuwuError
from luwu.base.limits import MIB
from luwu.base.quantities import format_bytes
from luwu.estimate.job import Planned
from luwu.estimate.outcome import error_ratio
from luwu.estimate.plan import estimate
from luwu.measure.floors import Floors
from luwu.measure.timing import LONG, Samples

CASE: Final = "1b"
LARGE: Final = Training(layers=20, width=2048, context=16, batch=1, workers=2, steps=8)
SMALL: Final = Training(layers=2, width=96, context=16, batch=1, workers=2, steps=4)
BUDGET: Final = "1GiB"
SMALL_BUDGET: Final = "1MiB"
SMALL_SAMPLES: Final = Samples(copy_bytes=MIB, disk_bytes=MIB, seconds=0.01)

DRIFT_MAX: Final = 0.2
"""More than so much between the floors before and after: no plan could have known."""
BYTES_ERROR_MAX: Final = 0.05
SMALL_BYTES_ERROR_MAX: Final = 0.5
"""Of a few small pages: which pulls are handed out by updates is a matter of chance."""

FLOORS_OF: Final = {
    "disk": ("disk.read_bytes_per_s", "disk.mixed_bytes_per_s", "disk.pull_bytes_per_s"),
    "compute": ("matmul_flops_per_s", "compute_s"),
    "exchange": ("copy_bytes_per_s", "socket_bytes_per_s"),
    "update": ("update_parameters_per_s",),
    "flush": ("disk.flush_s",),
    "messages": ("messages.end_s",),
}
"""What a resource's floor is made of."""

MEANINGS: Final = {
    "plan_error_ratio": "1b: |seconds of a step - planned| / seconds, by the floors before; less "
    "is better; void where the row's plan_void says so",
}


def measure(runs: TrainingRuns, *, smoke: bool) -> tuple[Row, dict[str, float]]:
    """Plan, train, measure again: the row and its claim. Raises LuwuError for a wrong answer."""
    job, samples = (SMALL, SMALL_SAMPLES) if smoke else (LARGE, LONG)
    flags = {"memory_budget": SMALL_BUDGET if smoke else BUDGET, "durability": "process"}
    say(f"{CASE}: floors before")
    planned = runs.plan(job, flags, samples)
    say(f"{CASE}: {planned.estimate.parameters_count:,} parameters, a step is planned to take "
        f"{planned.estimate.step_seconds:.3g} s, bound by {planned.estimate.binding}")  # fmt: skip
    load_before = os.getloadavg()[0]
    run = runs.run("luwu", job, flags)
    loads = [load_before, os.getloadavg()[0]]
    say(f"{CASE}: floors after")
    after = runs.plan(job, flags, samples).floors

    seconds = run.document["step_seconds"][1:-1]
    middle = harness.median(seconds)
    said = plan_errors(planned, after, middle)
    differences = drift(planned.floors, after, planned.estimate.binding)
    is_steady = all(each is not None and each <= DRIFT_MAX for each in differences.values())
    row = harness.row(
        CASE, "luwu", seconds, workers=job.workers, dtype="float32", switch=True,
        tokens_per_worker=job.batch * job.context, parameters=planned.estimate.parameters_count,
        plan_void=not (differences and is_steady), floors_differ_ratio=differences,
        floors_before=planned.floors.document(), floors_after=after.document(),
        estimate=planned.estimate.document(), bytes_per_parameter_and_step=checked(
            run, planned, SMALL_BYTES_ERROR_MAX if smoke else BYTES_ERROR_MAX
        ),
        load_averages=loads,
        worker_peak_rss_bytes=max(run.document["worker_peak_rss_bytes"]),
        **{name: run.document[name] for name in (
            "step_seconds", "node_peak_rss_bytes", "switch_peak_rss_bytes", "memory_peak_bytes",
            "memory_budget_bytes", "switch_memory_budget_bytes", "disk_bytes",
            "disk_space_bytes", "loss",
        )},
    ) | said  # fmt: skip
    _show(row)
    return row, {"plan_error_ratio": row["plan_error_ratio"]}


def plan_errors(planned: Planned, after: Floors, seconds: float) -> dict[str, float | None]:
    """The claim, and what it had been with the floors after, or with the mean of both."""
    found: dict[str, float | None] = {}
    for name, floors in {
        "": planned.floors, "_after": after, "_mean": mean_floors(planned.floors, after)
    }.items():  # fmt: skip
        said = estimate(planned.job, planned.plan, floors).step_seconds
        found[f"planned_seconds{name}"] = said
        found[f"plan_error_ratio{name}"] = error_ratio(seconds, said)
    return found


def drift(before: Floors, after: Floors, binding: str | None) -> dict[str, float | None]:
    """|after - before| / before of each floor that the binding resource uses."""
    found: dict[str, float | None] = {}
    for path in FLOORS_OF.get(binding or "", ()):
        old, new = _at(before, path), _at(after, path)
        if old is not None:
            found[path] = None if new is None else abs(new - old) / old
    return found


def mean_floors(before: Floors, after: Floors) -> Floors:
    """The mean of each rate and time; what is no number is that before."""
    mean: Floors = _mean(before, after)
    return mean


def checked(run: Run, planned: Planned, error_max: float) -> dict[str, dict[str, float]]:
    """Bytes of disk a parameter and step, planned and counted. Raises LuwuError.

    Beside steps, a run writes every page once when its first weights are loaded, and reads all
    weights once for the digest at its end.
    """
    steps, losses = run.job.steps, run.document["loss"]
    if len(losses) != steps or not all(map(math.isfinite, losses)):
        raise LuwuError(f"{CASE}: {steps} finite losses were expected, found {losses}")
    if run.node is None or run.node["steps"] != steps:
        raise LuwuError(f"{CASE}: not all of {steps} steps are decided at the node: {run.node}")
    said, each = planned.estimate, planned.estimate.parameters_count
    once = {
        "read": int(4 * each * (1 - said.resident_pages_ratio)),
        "written": next(use.written_bytes for use in said.disk if use.name == "updates"),
    }
    of_a_step = {"read": said.disk_read_bytes, "written": said.disk_written_bytes}
    found = {}
    for way, expected in of_a_step.items():
        count = (run.document["disk_bytes"][way] - once[way]) / steps
        found[way] = {"planned": expected / each, "counted": count / each}
        say(f"{CASE}: {way} a parameter and step: {expected / each:.2f} B planned, "
            f"{count / each:.2f} B counted")  # fmt: skip
        if abs(count - expected) > error_max * expected:
            raise LuwuError(
                f"{CASE}: {format_bytes(count)} {way} a step on disk, planned were "
                f"{format_bytes(expected)}: the plan is not of this run"
            )
    return found


def _mean(before: Any, after: Any) -> Any:
    if dataclasses.is_dataclass(before) and not isinstance(before, type):
        if type(after) is not type(before):
            return before
        names = [each.name for each in dataclasses.fields(before)]
        values = {name: _mean(getattr(before, name), getattr(after, name)) for name in names}
        return type(before)(**values)
    if isinstance(before, float) and isinstance(after, float):
        return (before + after) / 2
    return before


def _at(floors: Floors, path: str) -> float | None:
    found: Any = floors
    for name in path.split("."):
        found = getattr(found, name, None)
    return found or None


def _show(row: Mapping[str, Any]) -> None:
    say(f"\n{CASE}, {row['parameters']:,} parameters, {row['workers']} workers, "
        f"steps of {row['seconds_median']:.2f} s (spread {row['seconds_spread']:.0%})")  # fmt: skip
    harness.print_table(
        ("floors", "planned, s", "off by"),
        [
            (name, f"{row[f'planned_seconds{end}']:.2f}", f"{row[f'plan_error_ratio{end}']:.0%}")
            for name, end in (("before", ""), ("after", "_after"), ("mean of both", "_mean"))
        ],
    )
    for name, ratio in row["floors_differ_ratio"].items():
        say(f"{name} differs by {'an unknown share' if ratio is None else f'{ratio:.0%}'}")
    if row["plan_void"]:
        say("void: a floor changed by more than a fifth while the run lasted")
    planned_bytes = {use["role"]: use["nbytes"] for use in row["estimate"]["memory"]}
    for role in ("worker", "switch", "node"):
        peaks = row[f"{role}_peak_rss_bytes"]
        peak = max(peaks) if isinstance(peaks, list) else peaks
        say(f"{role}: {format_bytes(peak)} at most, planned {format_bytes(planned_bytes[role])}")
    say(f"all processes: {format_bytes(row['memory_peak_bytes'])} at most, planned "
        f"{format_bytes(row['estimate']['memory_bytes'])}")  # fmt: skip
    say("load of the machine at the start and the end: "
        + " and ".join(f"{load:.1f}" for load in row["load_averages"]))  # fmt: skip
