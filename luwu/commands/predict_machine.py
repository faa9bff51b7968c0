"""`luwu predict validate --machine`: the emulator's own runs, predicted from floors, then measured.

First the floors of every case are measured, each part alone, and all cases are predicted; only then
is each case run, as `luwu compare` runs it. A case is a number of workers, a transport, a state in
RAM (durability none) or a share of it in memory (durability process), and a number of optimizer
nodes, of which one or two hold each page. Floors of a node's parts are those of a node alone. Other
work on the machine is not predicted: its share of the cores is shown beside each case.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any, Final, NamedTuple, TypeAlias

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.config import RunConfig, resolve
from luwu.base.errors import ConfigError
from luwu.base.identifiers import by_identifier, identifier, words
from luwu.compare.arm import run_arm
from luwu.compare.comparison import job_step_seconds
from luwu.estimate.job import gpt_job, gpt_options, parameters_count
from luwu.estimate.played import machine_job
from luwu.estimate.shape import kept_in_ram
from luwu.launch.processes.console import Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.processes.stopping import stop_requests
from luwu.launch.serving import decide_sizes, node_plan, state_directory
from luwu.measure.floors import core_count
from luwu.measure.machine_floors import QUICK, MachineAsk, machine_floors
from luwu.measure.machine_rehearsal import RehearsalFloors, rehearse
from luwu.measure.timing import Samples
from luwu.predict.driven.machine_play import predict_machine_step
from luwu.predict.machine.machine import MachineFloors, MachineStep
from workers.data import BYTE_VOCAB

SCHEMA: Final = 3
"""3: cases have `nodes` and `replicas`, their `place` is a share; a summary has `mean_within`."""
ERROR_MEAN: Final = 0.12
ERROR_MAX: Final = 0.25
"""At most, in the mean and of any case."""
OTHERS_MAX: Final = 0.99
"""Something was left for us."""
STEPS: Final = 10
WARM_UPS: Final = 3
STATE_BYTES_PER_PARAMETER: Final = 12
TEXT_BYTES: Final = 2_000_000
RAM: Final = "RAM"
Known: TypeAlias = dict[tuple[str, int | None, int, int], RehearsalFloors]
"""By transport, memory budget (None: the state is in RAM), chunk and extent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The model and batch of all cases."""

    layers: int = 4
    width: int = 512
    context: int = 64
    batch: int = 4
    steps: int = STEPS
    samples: Samples = QUICK

    @property
    def flags(self) -> dict[str, str]:
        """As `luwu compare` takes them."""
        names = ("layers", "width", "context", "batch", "steps")
        return {name: str(getattr(self, name)) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run of `luwu compare`."""

    workers: int
    transport: str
    parts: int = 0
    """The nodes have one part in so many of their pages in memory; 0: all, and no disk."""
    nodes: int = 1
    replicas: int = 1
    """Nodes that hold each page."""

    @property
    def place(self) -> str:
        """Where the state is, for people."""
        return f"1/{self.parts}" if self.parts else RAM

    def config(self, shape: Shape, data: Path) -> RunConfig:
        """The configuration that it is started with."""
        flags = {
            **shape.flags, "workers": str(self.workers), "transport": self.transport,
            "arms": "luwu", "data": str(data), "durability": "none",
        }  # fmt: skip
        config = resolve(flags=flags, environ={}).config
        if not self.parts:
            return config
        state = self.replicas * STATE_BYTES_PER_PARAMETER * parameters_count(config)
        more = {
            "durability": "process", "memory_budget": f"{state // self.parts}B",
            "optimizer_nodes": str(self.nodes), "replicas": str(self.replicas),
        }  # fmt: skip
        return resolve(flags={**flags, **more}, environ={}).config


CASES: Final = (
    Case(workers=1, transport="ipc"),
    Case(workers=2, transport="shm"),
    Case(workers=3, transport="tcp"),
    Case(workers=4, transport="ipc"),
    Case(workers=6, transport="shm"),
    Case(workers=8, transport="tcp"),
    Case(workers=1, transport="tcp", parts=2),
    Case(workers=4, transport="shm", parts=2),
    Case(workers=5, transport="ipc", parts=2),
    Case(workers=2, transport="ipc", parts=4),
    Case(workers=3, transport="shm", parts=4),
    Case(workers=7, transport="tcp", parts=4),
    Case(workers=2, transport="tcp", parts=8),
    Case(workers=4, transport="ipc", parts=8),
    Case(workers=8, transport="shm", parts=8),
    Case(workers=2, transport="tcp", parts=2, nodes=2),
    Case(workers=4, transport="shm", parts=4, nodes=2),
    Case(workers=3, transport="ipc", parts=8, nodes=2),
    Case(workers=2, transport="shm", parts=2, nodes=2, replicas=2),
    Case(workers=3, transport="tcp", parts=4, nodes=2, replicas=2),
    Case(workers=4, transport="ipc", parts=8, nodes=2, replicas=2),
)
"""Each number of workers, each transport with each place of the state, and with two nodes."""


def validate_machine(*, as_json: bool, cases: Sequence[Case] = CASES, shape: Shape | None = None
) -> int:  # fmt: skip
    """Predict all cases, run them, print; the exit code: 1 if they are further off than asked."""
    started_ns = SYSTEM_CLOCK.now_ns()
    shape = shape or Shape()
    console = Console(sys.stderr)
    with tempfile.TemporaryDirectory(prefix="luwu-machine-") as name, stop_requests() as stopping:
        folder = Path(name)
        data = _text(folder)
        configs = [each.config(shape, data) for each in cases]
        console.say(f"measuring the floors of {len(cases)} cases, each part alone")
        known: Known = {}
        predicted = [_predict(config, shape, folder, known) for config in configs]
        rows: list[dict[str, Any]] = []
        for case, config, found in zip(cases, configs, predicted, strict=True):
            run = folder / f"{folder.name}-{len(rows)}"
            measured_s, others = _measure(config, run, stopping)
            row = _row(case, found, measured_s, others)
            console.say(_line(row))
            rows.append(row)
    document = _document(rows, shape, (SYSTEM_CLOCK.now_ns() - started_ns) / 1e9)
    print(json.dumps(document, indent=1) if as_json else machine_text(document))
    summary = document["summary"]
    return 0 if summary["mean"] <= ERROR_MEAN and summary["max"] <= ERROR_MAX else 1


# ---------------------------------------------------------------------- before a run


class _Predicted(NamedTuple):
    """A case before it is run."""

    floors: MachineFloors
    step: MachineStep
    extent_chunks: int


def _predict(config: RunConfig, shape: Shape, folder: Path, known: Known) -> _Predicted:
    """Floors of a case and its step; `known`: rehearsals, which do not depend on the workers."""
    sizes = decide_sizes(config, None)
    state = state_directory(config, folder / "state")
    plan = node_plan(config, sizes)
    job = gpt_job(config, sizes, is_in_ram=state is None)
    kept = kept_in_ram(job, plan, job.store)
    nodes, replicas = config.optimizer_nodes, config.replicas
    machine = machine_job(job, plan, kept, nodes=nodes, replicas=replicas)
    own = replace(sizes, memory_budget_bytes=sizes.memory_budget_bytes // nodes)
    alone = replace(config, optimizer_nodes=1, replicas=1)
    chunks = machine.chunks
    options = gpt_options(config)
    model = options.gpt(BYTE_VOCAB)
    ask = MachineAsk(
        layers=model.layers, width=model.width, heads=model.heads, context=model.context,
        vocab=model.vocab, batch=options.batch, workers=config.workers,
        threads=job.worker_threads, transport=job.transport, chunk_bytes=max(map(max, chunks)),
        extent_bytes=max(extent.wire_bytes for extent in job.layout.extents),
        unit_bytes=max(map(sum, chunks)), model_bytes=job.wire_bytes,
        directory=None if state is None else folder, updates_count=plan.updates_count,
        reads_count=plan.reads_count, pages_together=plan.pages_together, samples=shape.samples,
    )  # fmt: skip

    def rehearsed(handed_s: float, wire_s_per_byte: float) -> RehearsalFloors:
        budget = None if state is None else own.memory_budget_bytes
        key = (job.transport, budget, own.chunk_bytes, own.extent_chunks)
        if key in known:
            return known[key]
        number = len(known)
        known[key] = rehearse(
            alone, own, job.layout, state=None if state is None else folder / f"state-{number}",
            directory=folder / f"{folder.name}-rehearsal-{number}", handed_s=handed_s,
            wire_s_per_byte=wire_s_per_byte,
        )  # fmt: skip
        return known[key]

    floors = machine_floors(ask, rehearsed)
    step = predict_machine_step(machine, floors)
    return _Predicted(floors, step, job.layout.extent_chunks)


def _text(folder: Path) -> Path:
    """Something to train on."""
    path = folder / "text"
    text = " ".join(str(number * number) for number in range(TEXT_BYTES // 9))
    path.write_text(text[:TEXT_BYTES], encoding="ascii")
    return path


# ---------------------------------------------------------------------- a run


def _measure(config: RunConfig, directory: Path, stopping: Any) -> tuple[float, float]:
    """(median seconds of a step, share of the cores that other work took meanwhile)."""
    run = RunDirectory.create(directory)
    before_s, ours_s, start_ns = _busy_seconds(), _our_seconds(), SYSTEM_CLOCK.now_ns()
    with (run.path / "console.log").open("a") as log:
        arm = run_arm("luwu", config, decide_sizes(config, None), run, Console(log), stopping)
    passed_s = (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
    others_s = _busy_seconds() - before_s - (_our_seconds() - ours_s)
    seconds = job_step_seconds(arm.workers)
    counted = seconds[min(WARM_UPS, len(seconds) - 2) : -1]  # the last waits for all of itself
    return median(counted), min(OTHERS_MAX, max(0.0, others_s / (passed_s * core_count())))


def _busy_seconds() -> float:
    """Busy time of all processors, by all processes, since the machine was started."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, *_ = map(int, fields)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _our_seconds() -> float:
    """Processor time of this process and of its ended children."""
    found = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        found += usage.ru_utime + usage.ru_stime
    return found


# ---------------------------------------------------------------------- what is said of it


def _row(case: Case, found: _Predicted, measured_s: float, others: float) -> dict[str, Any]:
    floors, step, extent_chunks = found
    return {
        "workers": case.workers, "transport": case.transport, "place": case.place,
        "nodes": case.nodes, "replicas": case.replicas, "extent_chunks": extent_chunks,
        "predicted_s": step.step_s, "measured_s": measured_s,
        "error": step.step_s / measured_s - 1, "bound_by": identifier(step.binding),
        "parts_s": by_identifier(step.parts),
        "disk_s": step.disk_s, "others_ratio": others,
        "error_beside_others": step.step_s / (1 - others) / measured_s - 1,
        "floors": asdict(floors),
    }  # fmt: skip


def _document(rows: list[dict[str, Any]], shape: Shape, seconds: float) -> dict[str, Any]:
    errors = [abs(row["error"]) for row in rows]
    return {
        "schema": SCHEMA,
        "label": {"predicted_s": "predicted", "measured_s": "measured", "floors": "measured"},
        "cores": core_count(),
        "job": shape.flags,
        "cases": rows,
        "summary": {
            "cases": len(rows), "mean": mean(errors), "max": max(errors),
            "mean_within": ERROR_MEAN, "within": ERROR_MAX,
            "others_max": max(row["others_ratio"] for row in rows),
        },
        "seconds": seconds,
    }  # fmt: skip


def machine_text(document: dict[str, Any]) -> str:
    """The document for people."""
    job, summary = document["job"], document["summary"]
    lines = [
        f"gpt of {job['layers']} layers, width {job['width']}, {job['batch']} x {job['context']} "
        f"tokens a worker, {document['cores']} processors; seconds of a step",
        "",
        f"{'workers':>7} {'transport':<9} {'state':<5} {'nodes':<8} {'predicted':>9} "
        f"{'measured':>9} {'error':>7}  {'bound by':<8} {'others':>6} {'beside':>7}  "
        "parts of the prediction, ms",
        *map(_line, document["cases"]),
        "",
        f"errors of {summary['cases']}: mean {summary['mean']:.1%}, maximum {summary['max']:.1%}; "
        f"required: at most {summary['mean_within']:.0%} and {summary['within']:.0%}",
    ]
    if summary["others_max"] > 0.1:
        lines.append(
            f"other work took up to {summary['others_max']:.0%} of the cores, which the "
            "predictions do not include: measure again on an idle machine. `beside` is the error "
            "with the time of other work added to each step; it does not affect the result"
        )
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    longest = sorted(row["parts_s"].items(), key=lambda each: -each[1])
    parts = ", ".join(f"{words(name)} {1000 * s:.0f}" for name, s in longest if s >= 0.0005)
    nodes = str(row["nodes"]) if row["replicas"] == 1 else f"{row['nodes']}, both"
    return (
        f"{row['workers']:>7} {row['transport']:<9} {row['place']:<5} {nodes:<8} "
        f"{row['predicted_s']:>9.3f} "
        f"{row['measured_s']:>9.3f} {row['error']:>+7.1%}  {words(row['bound_by']):<8} "
        f"{row['others_ratio']:>6.0%} {row['error_beside_others']:>+7.1%}  {parts}"
    )


def run_validate_machine(rest: Sequence[str], *, as_json: bool) -> int:
    """The verb. Raises ConfigError."""
    if rest:
        raise ConfigError(f"luwu predict validate --machine takes no {rest[0]!r}; leave it out")
    return validate_machine(as_json=as_json)
