"""Run one arm of a comparison: the same script, model, data and seed, under one way to train."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from luwu.base.config import RunConfig
from luwu.base.errors import LuwuError
from luwu.base.json_file import read_json
from luwu.base.own import own_module
from luwu.base.tree import NODE
from luwu.estimate.plan import Estimate
from luwu.estimate.script import StartedJob, job_environ
from luwu.launch.agent import Share
from luwu.launch.network import dilated_compute_ms
from luwu.launch.nodes import fold_nodes
from luwu.launch.processes.children import DiskBytes
from luwu.launch.processes.console import Console
from luwu.launch.processes.relay import ByLine
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.serving import serve, state_directory
from luwu.launch.sizes import Sizes
from luwu.launch.supervisor import Supervisor, threads_alone, threads_per_worker
from luwu.report.event_files import spans
from luwu.report.recent import RecentEvents, ended_steps, lanes_of_step, typical_step

SCRIPT: Final = tuple(own_module("workers.train"))
PROGRESS: Final = " train.step "
IN_RAM: Final = "luwu_ram"
"""The arm of `luwu` with its whole state in the node's memory."""
LUWU_ARMS: Final = ("luwu", IN_RAM)
"""Arms whose workers talk to a switch; the second has a run directory of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRun:
    """The results of one arm: records of its workers and its node, and samples from outside."""

    name: str
    workers: list[dict[str, Any]]
    memory_peaks: dict[str, int]
    memory_peak_of_all: int
    """The largest sum at one instant."""
    kernel_disk: DiskBytes | None
    threads: int
    node: dict[str, Any] | None = None
    updated_before_last_push_ratio: float | None = None
    switches: list[dict[str, Any]] = field(default_factory=list)
    """Traffic of each switch, the root first."""
    bound_by: str | None = None
    """The engine that limits its typical step, or `wait`."""
    links: list[dict[str, Any]] | None = None
    """Traffic of each emulated link; None where this arm has none."""
    estimate: dict[str, Any] | None = None
    """The estimate of the job; None with several optimizer nodes."""
    pool: dict[str, Any] | None = None
    """Slots of the switch, its own process or the node's: `SwitchCore.report`."""


def run_arm(
    name: str,
    config: RunConfig,
    sizes: Sizes,
    run: RunDirectory,
    console: Console,
    should_stop: Callable[[], bool],
    script: Sequence[str] = SCRIPT,
) -> ArmRun:
    """Train with one arm to the end. Raises what went wrong.

    `script` takes the options of `workers/train.py` and writes its results.
    """
    in_network, alone = name in LUWU_ARMS, name == "single"
    prefix = "" if in_network else f"{name}-"
    whole = run
    if name == IN_RAM:  # luwu's processes of the same names keep their records in `run`
        run = RunDirectory.create(run.path / name)
    config = config_of_arm(name, config)
    supervisor = Supervisor(
        run,
        console,
        restarts_max=config.restarts,
        should_stop=should_stop,
        connect_timeout_s=config.connect_timeout,
        prefix=prefix,
    )
    state = state_directory(config, run.file("state"))
    # Every arm's workers have the same cores.
    threads = threads_alone(config.workers) if alone else threads_per_worker(config.workers)
    detail = console.detail
    started = StartedJob(run, config, sizes, state, say=detail, detail=detail)
    with supervisor:
        if in_network:
            detail(f"arm     {name}")
            supervisor.worker_environ = job_environ(run)
            supervisor.watch.append(started.look)
            serve(supervisor, config, state=state, sizes=sizes, say=detail)
        whole.begin()
        _train(supervisor, name, config, console, script, threads=threads)
    done = _results(name, supervisor, config, state, threads=threads, planned=started.estimate)
    if config.state is None and state is not None:
        shutil.rmtree(state, ignore_errors=True)
    return done


def _train(
    supervisor: Supervisor, name: str, config: RunConfig, console: Console,
    script: Sequence[str], *, threads: int,
) -> None:  # fmt: skip
    """Run the script in the arm's workers until they have ended."""
    run, in_network = supervisor.run, name in LUWU_ARMS
    by_line = ByLine(lambda line: show_progress(console, name, line))
    supervisor.train(
        [*script, *script_arguments(name, config, run.result(f"{name}.json"))],
        share=Share.of_all(config.workers),
        connect=str(run.connect_file) if in_network else None,
        sink=by_line,
        alone=name == "single",
        threads=threads,
    )
    supervisor.wait()
    by_line.end()


def _results(
    name: str, supervisor: Supervisor, config: RunConfig, state: Path | None, *, threads: int,
    planned: Estimate | None,
) -> ArmRun:  # fmt: skip
    """Results that the processes of an arm wrote at their end, and samples taken from outside."""
    run, events = supervisor.run, supervisor.run.path / "events"
    ranks = range(1 if name == "single" else config.workers)
    workers = [
        _written(run.result(f"{name}.rank{rank}.json"), f"worker {rank} of {name}", "its log")
        for rank in ranks
    ]
    done = ArmRun(
        name=name,
        workers=workers,
        memory_peaks=supervisor.sampler.peaks,
        memory_peak_of_all=supervisor.sampler.peak_of_all,
        kernel_disk=supervisor.kernel_disk_bytes(),
        threads=threads,
        estimate=None if planned is None else planned.document(),
    )
    if name not in LUWU_ARMS:
        return done
    fold_nodes(run, state, config.optimizer_nodes)
    node = _written(run.result("node.json"), "the node", str(run.log("node")))
    found = [read_json(path) for path in sorted(run.path.glob("results/switch*.json"))]
    switches = sorted((each for each in found if each), key=lambda each: each["parent"] != NODE)
    return replace(
        done,
        node=node,
        switches=switches,
        pool=(switches[0] if switches else node)["pool"],
        updated_before_last_push_ratio=updated_before_last_push_ratio(events),
        bound_by=limit_of(events),
        links=[row for summary in (*switches, node) for row in summary.get("links", [])],
    )


def updated_before_last_push_ratio(events: Path) -> float | None:
    """Share of pages updated before their step's last push began; None without spans.

    The share is over all steps. All processes of one host share the monotonic clock.
    """
    last_push_ns: dict[int, int] = {}
    for path in sorted(events.glob("worker-*.jsonl")):
        for span in spans(path, "push"):
            step, start_ns = span["step"], span["start_ns"]
            last_push_ns[step] = max(start_ns, last_push_ns.get(step, start_ns))
    updated = early = 0
    for path in sorted(events.glob("node*.jsonl")):
        for span in spans(path, "update"):
            if span.get("step") in last_push_ns:
                updated += 1
                early += span["end_ns"] < last_push_ns[span["step"]]
    return early / updated if updated else None


def limit_of(events: Path) -> str | None:
    """The report's verdict on what limits the typical step; None if no step is whole."""
    found = RecentEvents(events, lambda process, record: None)
    found.read()
    steps = ended_steps(found)
    return lanes_of_step(found, typical_step(found, steps, None)).limit if steps else None


def script_arguments(name: str, config: RunConfig, result: Path | None) -> list[str]:
    """The command line of `workers/train.py`; what is not set keeps the script's own default."""
    names = ["steps", "layers", "width", "batch", "context", "seed", "dtype", "max_grad_norm"]
    names += ["state_dtype", "master_dtype"] if name in LUWU_ARMS else []
    given: dict[str, object] = {each.replace("_", "-"): getattr(config, each) for each in names}
    given |= {
        "data": None if config.data is None else config.data.absolute(),
        "compute-ms": dilated_compute_ms(config),
        "global-workers": config.workers if name == "single" else None,
        "result": result,
    }
    if config.reshard_after_forward is not None:
        given["reshard-after-forward"] = str(config.reshard_after_forward).lower()
    arguments = ["--arm", "luwu" if name == IN_RAM else name]  # to a worker they are the same
    for flag, value in given.items():
        if value is not None:
            arguments += [f"--{flag}", str(value)]
    return arguments


def show_progress(console: Console, name: str, line: str) -> None:
    """Print a line of the script after the arm's name; of a step, only its numbers.

    The loss is that of rank 0 on its own batch; the report has the mean over all ranks.
    """
    _, is_of_step, numbers = line.partition(PROGRESS)
    shown = numbers.replace("loss=", "rank0_loss=") if is_of_step else line
    console.say(f"{name:<6} {shown}")


def config_of_arm(name: str, config: RunConfig) -> RunConfig:
    """The configuration that an arm runs with.

    `--state` is that of `luwu`. The node of `luwu_ram` keeps its state in memory: no disk, and half
    of the free memory as budget.
    """
    if name != IN_RAM:
        return config
    return replace(config, state=None, durability="none", memory_budget=None, disk_rate=None)


def _written(path: Path, who: str, log: str) -> dict[str, Any]:
    found = read_json(path)
    if found is None:
        raise LuwuError(f"{who} ended well but wrote no {path}; see {log}")
    return found
