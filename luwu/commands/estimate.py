"""`luwu estimate`: what a job takes on this machine, before it runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from luwu.base.config import KEYS, Resolved, RunConfig
from luwu.base.errors import ConfigError
from luwu.base.json_file import write_json
from luwu.commands import form
from luwu.commands.run import check_script, own_script
from luwu.launch.network import links_of
from luwu.launch.processes.run_directory import RUNS_DIRECTORY
from luwu.launch.serving import Sizes, decide_sizes, state_directory

if TYPE_CHECKING:
    from luwu.estimate.shape import JobShape

SCHEMA: Final = 3
"""3: no times of a step but the least of its disk."""
OF_SCRIPTS: Final = ("json",)
"""Keys of `luwu compare` alone that count for a script too."""


@click.command(
    "estimate",
    cls=form.Command,
    keys=form.keys_of("compare"),
    examples=(
        "luwu estimate --workers 2 --memory-budget 1GiB train.py --epochs 3",
        "luwu estimate --layers 12 --width 768 --workers 2 --memory-budget 1GiB",
    ),
)
@click.argument(form.SCRIPT, nargs=-1, type=form.Value("FILE|-m MODULE "))
def run(resolved: Resolved, script: tuple[str, ...]) -> int:
    """Estimate what a job needs on this machine before it runs: memory of each process, space on
    disk, bytes per step on disk and links, and the least time of a step, for the disk. One process
    runs the script up to its first forward, with parameters that take no memory; arguments after
    the script are passed to it. Without a script the job is that of luwu compare."""
    config = resolved.config
    _check(resolved, script)
    from luwu.estimate.disk import THOROUGH
    from luwu.estimate.job import plan_job
    from luwu.estimate.text import estimate_text

    sizes = decide_sizes(config, config.state)
    state = state_directory(config, RUNS_DIRECTORY / "state")
    job = _job(script, config, sizes, is_in_ram=state is None)
    planned = plan_job(job, config, sizes, state=state, samples=THOROUGH)
    document = {
        "schema": SCHEMA,
        "estimate": planned.estimate.document(),
        "disk": None if planned.disk is None else asdict(planned.disk),
        "chunk_bytes": sizes.chunk_bytes,
        "extent_chunks": sizes.extent_chunks,
        "memory_budget_bytes": sizes.memory_budget_bytes,
    }
    if config.json == "-":
        print(json.dumps(document, indent=1))
        return 0
    if config.json is not None:
        write_json(Path(config.json).absolute(), document)
    for line in sizes.lines:
        print(line)
    print(estimate_text(planned.estimate, planned.job, planned.plan, planned.disk))
    return 0


def _job(script: Sequence[str], config: RunConfig, sizes: Sizes, *, is_in_ram: bool) -> JobShape:
    """The job of a script, or of the built-in GPT."""
    if not script:
        from luwu.estimate.gpt import gpt_job

        return gpt_job(config, sizes, is_in_ram=is_in_ram)
    from luwu.estimate.job import job_of
    from luwu.estimate.script import script_job

    found = script_job(own_script([*script], lambda _: None), config, sizes)
    return job_of(config, found.description, stays=found.stays, is_in_ram=is_in_ram)


def _check(resolved: Resolved, script: Sequence[str]) -> None:
    """Raises ConfigError for what cannot be estimated."""
    config = resolved.config
    if config.json not in (None, "-") and not Path(str(config.json)).absolute().parent.is_dir():
        raise ConfigError(f"json: no directory for {config.json}; make it first")
    if not links_of(config).is_ideal or config.disk_rate is not None:
        raise ConfigError(
            "link: luwu estimate measures this machine's disk, without emulated links and disks; "
            "leave --link, --loss, --duplicate, --reorder and --disk-rate out"
        )
    if config.optimizer_nodes > 1:
        raise ConfigError(
            f"optimizer_nodes: only one node is planned, not {config.optimizer_nodes}; leave it "
            "out, and divide the disk's part by their number"
        )
    if script:
        check_script(script)
        for name in resolved.given.keys() & KEYS.keys():
            if KEYS[name].verbs == ("compare",) and name not in OF_SCRIPTS:
                raise ConfigError(
                    f"{name} ({KEYS[name].flag}) belongs to the job of luwu compare; leave it out, "
                    "or pass what the script takes after its name"
                )
    elif config.data is not None:
        from workers.data_file import check_data_file

        check_data_file(config.data)
