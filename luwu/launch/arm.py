"""Run one arm of a comparison: the same script, model, data and seed, under one way to train."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from luwu.base.config import RunConfig
from luwu.base.errors import LuwuError
from luwu.base.json_file import read_json
from luwu.launch.children import DiskBytes
from luwu.launch.console import Console
from luwu.launch.estimate.outcome import busy_seconds
from luwu.launch.network import dilated_compute_ms
from luwu.launch.overlap import updated_before_last_push_ratio
from luwu.launch.run_directory import RunDirectory
from luwu.launch.serving import Sizes, serve, state_directory
from luwu.launch.supervisor import Supervisor, threads_alone, threads_per_worker

SCRIPT: Final = ("-m", "workers.train")
PROGRESS: Final = " train.step "


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRun:
    """What one arm left: raw records of its workers and its node, and what we saw from outside."""

    name: str
    workers: list[dict[str, Any]]
    node: dict[str, Any] | None
    memory_peaks: dict[str, int]
    kernel_disk: DiskBytes | None
    threads: int
    updated_before_last_push_ratio: float | None
    busy_seconds: dict[str, float] | None = None
    """Of a step, by resource."""
    links: list[dict[str, Any]] | None = None
    """What each emulated link carried; None where this arm has none."""
    pool: dict[str, Any] | None = None
    """Slots of the switch, its own process or the node's: `SwitchCore.report`."""


def run_arm(
    name: str,
    config: RunConfig,
    sizes: Sizes,
    run: RunDirectory,
    console: Console,
    should_stop: Callable[[], bool],
) -> ArmRun:
    """Train with one arm to the end. Raises what went wrong."""
    prefix = "" if name == "luwu" else f"{name}-"
    alone = name == "single"
    supervisor = Supervisor(
        run,
        console,
        restarts_max=config.restarts,
        should_stop=should_stop,
        connect_timeout_s=config.connect_timeout,
        prefix=prefix,
    )
    state = state_directory(config, run.file("state"))
    with supervisor:
        connect = None
        if name == "luwu":
            serve(supervisor, config, state=state, sizes=sizes, say=console.say)
            connect = str(run.connect_file)
        # Every arm's workers have the same cores.
        threads = threads_alone(config.workers) if alone else threads_per_worker(config.workers)
        supervisor.train(
            [*SCRIPT, *script_arguments(name, config, run.result(f"{name}.json"))],
            workers=config.workers,
            connect=connect,
            on_line=lambda line: show_progress(console, name, config, line),
            alone=alone,
            threads=threads,
        )
        supervisor.wait()
        console.end_live()
    if config.state is None and state is not None:
        shutil.rmtree(state, ignore_errors=True)
    workers = [_result(run, name, rank) for rank in range(1 if alone else config.workers)]
    steps_count = len(workers[0]["step_seconds"])
    return ArmRun(
        name=name,
        workers=workers,
        node=_summary(run, "node") if name == "luwu" else None,
        pool=_summary(run, "node" if config.no_switch else "switch")["pool"]
        if name == "luwu"
        else None,
        memory_peaks=supervisor.memory_peaks,
        kernel_disk=supervisor.kernel_disk_bytes("node"),
        threads=threads,
        updated_before_last_push_ratio=(
            updated_before_last_push_ratio(run.path / "events") if name == "luwu" else None
        ),
        busy_seconds=busy_seconds(run.path / "events", steps_count) if name == "luwu" else None,
        links=_links(run) if name == "luwu" else None,
    )


def script_arguments(name: str, config: RunConfig, result: Path) -> list[str]:
    """The command line of `workers/train.py`; what nobody set keeps the script's own default."""
    given: dict[str, object] = {
        "steps": config.steps,
        "layers": config.layers,
        "width": config.width,
        "batch": config.batch,
        "context": config.context,
        "data": None if config.data is None else config.data.absolute(),
        "seed": config.seed,
        "dtype": config.dtype,
        "max-grad-norm": config.max_grad_norm,
        "compute-ms": dilated_compute_ms(config),
        "global-workers": config.workers if name == "single" else None,
        "result": result,
    }
    if config.reshard_after_forward is not None:
        given["reshard-after-forward"] = str(config.reshard_after_forward).lower()
    arguments = ["--arm", name]
    for flag, value in given.items():
        if value is not None:
            arguments += [f"--{flag}", str(value)]
    return arguments


def show_progress(console: Console, name: str, config: RunConfig, line: str) -> None:
    """One live line on a terminal; else every line that the script prints."""
    if PROGRESS not in line:
        if not console.is_terminal:
            console.say(f"{name:<6} {line}")
        return
    fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
    if not console.is_terminal:
        console.say(f"{name:<6} {line.partition(PROGRESS)[2]}")
        return
    total = f"/{config.steps}" if config.steps else ""
    loss = float(fields.get("loss", math.nan))
    console.live(
        f"{name:<6} step {fields.get('step', '?')}{total}  loss {loss:.4f}  "
        f"{fields.get('tps', '?')} tokens/s"
    )


def with_budget(config: RunConfig, memory_budget_bytes: int) -> RunConfig:
    """The same with another memory budget."""
    return replace(config, memory_budget=memory_budget_bytes)


def _result(run: RunDirectory, name: str, rank: int) -> dict[str, Any]:
    path = run.result(f"{name}.rank{rank}.json")
    found = read_json(path)
    if found is None:
        raise LuwuError(f"worker {rank} of {name} ended well but wrote no {path}; see its log")
    return found


def _links(run: RunDirectory) -> list[dict[str, Any]]:
    """What the machines say of their links."""
    said = [read_json(run.result(name)) or {} for name in ("switch.json", "node.json")]
    return [row for summary in said for row in summary.get("links", [])]


def _summary(run: RunDirectory, role: str) -> dict[str, Any]:
    path = run.result(f"{role}.json")
    found = read_json(path)
    if found is None:
        raise LuwuError(f"the {role} ended well but wrote no {path}; see {run.log(role)}")
    return found
