"""`luwu estimate`: what a job takes on this machine, before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from luwu.base.config import KEYS, Resolved, RunConfig
from luwu.base.directories import RUNS_DIRECTORY, free_bytes
from luwu.base.errors import ConfigError
from luwu.base.json_file import write_json
from luwu.commands import form
from luwu.commands.run import check_script
from luwu.launch.network import links_of
from luwu.launch.serving import state_directory
from luwu.launch.sizes import decide_sizes, node_plan

SCHEMA: Final = 6
"""6: with the link of a host."""
OF_SCRIPTS: Final = ("json",)
"""Keys of `luwu compare` alone that count for a script too."""


@form.command(
    "estimate",
    "luwu estimate --workers 2 --memory-budget 1GiB train.py --epochs 3",
    "luwu estimate --layers 12 --width 768 --workers 2 --memory-budget 1GiB",
    keys=form.keys_of("compare", "estimate"),
)
@click.argument(form.SCRIPT, nargs=-1, type=form.Value("FILE|-m MODULE "))
def run(resolved: Resolved, script: tuple[str, ...]) -> int:
    """Estimate what a job needs on this machine before it runs: memory of each process, space on
    disk, and bytes per step on disk and links. One process runs the script up to its first forward,
    with parameters that take no memory; arguments after the script are passed to it. Without a
    script the job is that of luwu compare."""
    config = resolved.config
    _check(resolved, script)
    from luwu.estimate.job import job_of
    from luwu.estimate.plan import estimate
    from luwu.estimate.script import script_job

    sizes = decide_sizes(config, config.state)
    node_plan(config, sizes)  # raises for a budget that is too small, before the script runs
    state = state_directory(config, RUNS_DIRECTORY / "state")
    command = [*script] if script else own_job(config)
    job = job_of(config, sizes, script_job(command, config, sizes), state)
    found = estimate(job, None if state is None else free_bytes(state))
    document = {
        "schema": SCHEMA,
        "estimate": found.document(),
        "chunk_bytes": sizes.chunk_bytes,
        "extent_chunks": sizes.extent_chunks,
        "memory_budget_bytes": sizes.memory_budget_bytes,
    }
    if config.json == "-":
        form.print_json(document)
        return 0
    if config.json is not None:
        write_json(Path(config.json).absolute(), document)
    for line in (found.line, *sizes.lines, *found.details):
        print(line)
    return 0


def own_job(config: RunConfig) -> list[str]:
    """The command of a worker of `luwu compare`."""
    from luwu.compare.arm import SCRIPT, script_arguments

    return [*SCRIPT, *script_arguments("luwu", config, None)]


def _check(resolved: Resolved, script: Sequence[str]) -> None:
    """Raises ConfigError for what cannot be estimated."""
    config = resolved.config
    if config.json not in (None, "-") and not Path(str(config.json)).absolute().parent.is_dir():
        raise ConfigError(f"json: no directory for {config.json}; make it first")
    if not links_of(config).is_ideal or config.disk_rate is not None:
        raise ConfigError(
            "link: luwu estimate counts bytes, which no emulated link or disk changes; leave "
            "--link and --disk-rate out"
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
