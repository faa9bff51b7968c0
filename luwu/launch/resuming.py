"""The step where a run with `--resume` begins, and how to continue a stopped run, as text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from luwu.base.foreign import lines_of
from luwu.base.json_file import json_object, read_json
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.progress import Progress


def first_step(run: RunDirectory) -> int | None:
    """The step that the node's state leads to; None: it found none. Asked when it listens."""
    try:
        records = map(json_object, lines_of(run.events("node")))
        return next(
            (each["version"] for each in records if each.get("name") == "node.opened"), None
        )
    except OSError:
        return None


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
    progress = Progress(run)
    progress.look()
    said = "interrupted; every process of the run was stopped"
    if progress.last is None:
        return f"{said}. No step was decided yet"
    if state is None:
        return f"{said}. Step {progress.last} was decided, in RAM only; --state DIR keeps steps"
    words = ["luwu", "run"]
    for name, value in {**flags, "resume": "true"}.items():
        if name != "run_dir":
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value in ("", "true") else [flag, value]
    return (
        f"{said}. Step {progress.last} is decided and kept in {state}; go on with\n"
        f"{shlex.join([*words, *script])}"
    )
