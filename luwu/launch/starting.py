"""The lines at the start of a run: what was started, where it keeps what, how to join it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from luwu.aggregate import FLOAT32
from luwu.base.config import RunConfig
from luwu.base.directories import memory_kind
from luwu.base.foreign import lines_of
from luwu.base.json_file import json_object, read_json
from luwu.base.quantities import format_bytes
from luwu.base.tree import partial_sums
from luwu.join.connection import Connection
from luwu.launch.network import groups_of, tree_of
from luwu.launch.processes.console import Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.progress import Decided
from luwu.launch.sizes import Sizes

SURVIVES: Final = {
    "step": "survives power loss",
    "process": "survives the end of any process",
    "none": "survives nothing",
}
"""What becomes of a decided step, by durability."""


def machines_text(config: RunConfig) -> str:
    """The switches and optimizer nodes of a job: `switch, node`."""
    switches = 0 if config.no_switch else len(tree_of(config))
    found = [_counted(switches, "switch", "switches")] if switches else []
    if config.hosts > 1:
        found = [f"switch, {config.hosts} hosts with a switch each"]
    return ", ".join([*found, _counted(config.optimizer_nodes, "node", "nodes")])


def state_text(config: RunConfig, state: Path | None) -> str:
    """Where the training state is, and what a decided step survives."""
    if state is None:
        return "state in RAM (ends with the node)"
    kind = memory_kind(state)
    survives = SURVIVES[config.durability]
    if kind is not None and config.durability != "none":
        survives = f"in memory, {kind}: survives the end of any process, but no reboot"
    return f"state {shown_path(state)} ({survives})"


def start_text(
    what: str, config: RunConfig, state: Path | None, sizes: Sizes, run: RunDirectory
) -> str:
    """The line of a job whose switch and node are on this host."""
    return (
        f"luwu: {what}, {machines_text(config)}; {state_text(config, state)}; "
        f"memory {format_bytes(sizes.memory_budget_bytes)}; {log_text(run)}"
    )


def say_start(console: Console, text: str, sizes: Sizes) -> None:
    """The line of a job, and what makes it slower than it could be; the rest are details."""
    console.say(text)
    for line in sizes.warnings:
        console.say(line)


def workers_text(count: int) -> str:
    """`2 workers`."""
    return f"{count} worker{'' if count == 1 else 's'}"


def log_text(run: RunDirectory) -> str:
    """Where the rest is written."""
    return f"log {shown_path(run.path)}"


def shown_path(path: Path) -> str:
    """A path as a person in the current directory would write it."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def say_security(console: Console, connection: Connection) -> None:
    """What protects the job: a detail, unless nothing does."""
    report = console.say if connection.is_open else console.detail
    report(f"security: {connection.security}")


def _counted(count: int, one: str, many: str) -> str:
    return one if count == 1 else f"{count} {many}"


def first_step(run: RunDirectory) -> int | None:
    """The step that the node's state leads to; None: it found none. Asked when it listens."""
    return _opened(run).get("version")


def say_other_tree(console: Console, run: RunDirectory, config: RunConfig) -> None:
    """Report that the state was made by other sums than those that this run makes."""
    before, now = _opened(run).get("tree"), partial_sums(groups_of(tree_of(config)))
    if before is not None and before != now and config.aggregate == FLOAT32:
        console.say(
            f"the last step of the state was summed {_sums_text(before)}, those of this run "
            f"{_sums_text(now)}: the last bits of weights depend on that (docs/trees.md)"
        )


def _sums_text(sums: str) -> str:
    return f"over ranks {sums.replace('|', ' and ')} first" if sums else "over all ranks at once"


def _opened(run: RunDirectory) -> dict[str, Any]:
    """The record of the node about the state that it opened first; empty if it found none."""
    try:
        records = map(json_object, lines_of(run.events("node")))
        return next((each for each in records if each.get("name") == "node.opened"), {})
    except OSError:
        return {}


def beginning(state: Path | None, step: int | None) -> str:
    """The message of a run with --resume before its workers start."""
    if step is None:
        place = "RAM (no --state)" if state is None else state
        return f"no state in {place}: starting at step 0"
    return (
        f"resuming at step {step}; the place in the data is not restored, unless it was attached "
        "or follows the step (docs/training.md)"
    )


def ending(run: RunDirectory, state: Path | None, step: int | None) -> str | None:
    """The message at its end, if no step was left to compute."""
    made = read_json(run.result("node.json"))
    if step is None or made is None or made["steps"] != step:
        return None
    return f"{state} holds step {step}: nothing to do"


def stopped(
    run: RunDirectory, state: Path | None, flags: Mapping[str, str], script: Sequence[str]
) -> str:
    """The message of a stopped run: what is kept, and the command that continues it."""
    count = Decided(run).count()
    said = "interrupted; every process of the run was stopped"
    if not count:
        return f"{said}. No step was decided yet"
    if state is None:
        return f"{said}. Step {count - 1} was decided, in RAM only; --state DIR keeps steps"
    words = ["luwu", "run"]
    for name, value in {**flags, "resume": "true"}.items():
        if name != "run_dir":
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value in ("", "true") else [flag, value]
    return (
        f"{said}. Step {count - 1} is decided and kept in {state}; go on with\n"
        f"{shlex.join([*words, *script])}"
    )
