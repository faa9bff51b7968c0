"""`luwu estimate`: what a job takes on this machine, before it runs."""

from __future__ import annotations

from typing import Final

import click

from luwu.base.config import KEYS, Resolved
from luwu.base.directories import RUNS_DIRECTORY, free_bytes
from luwu.base.errors import ConfigError
from luwu.commands import form
from luwu.commands.run import check_script
from luwu.launch.serving import state_directory
from luwu.launch.sizes import decide_sizes, node_plan

SCHEMA: Final = 6
"""6: with the link of a host."""
NO_BYTES: Final = ("link", "disk_rate", "dilation")
"""Keys that change no bytes."""


@form.command(
    "estimate",
    "luwu estimate --workers 2 --memory-budget 1GiB train.py --epochs 3",
    "luwu estimate --workers 4 -m workers.train --arm luwu --layers 12",
    keys=[
        name for name in form.keys_of("run")
        if {"compare", "estimate"} & {*KEYS[name].verbs} and name not in NO_BYTES
    ],
)  # fmt: skip
@click.argument(form.SCRIPT, nargs=-1, required=True, type=form.Value("FILE|-m MODULE "))
@form.JSON
def run(resolved: Resolved, script: tuple[str, ...], as_json: bool) -> int:
    """Estimate what a job needs on this machine before it runs: memory of each process, space on
    disk, and bytes per step on disk and links. One process runs the script up to its first forward,
    with parameters that take no memory; arguments after the script are passed to it."""
    config = resolved.config
    check_script(script)
    if config.optimizer_nodes > 1:
        raise ConfigError(
            f"optimizer_nodes: only one node is planned, not {config.optimizer_nodes}; leave it "
            "out, and divide the disk's part by their number"
        )
    from luwu.estimate.job import job_of
    from luwu.estimate.plan import estimate
    from luwu.estimate.script import script_job

    sizes = decide_sizes(config, config.state)
    node_plan(config, sizes)  # raises for a budget that is too small, before the script runs
    state = state_directory(config, RUNS_DIRECTORY / "state")
    job = job_of(config, sizes, script_job(script, config, sizes), state)
    found = estimate(job, None if state is None else free_bytes(state))
    document = {
        "schema": SCHEMA,
        "estimate": found.document(),
        "chunk_bytes": sizes.chunk_bytes,
        "extent_chunks": sizes.extent_chunks,
        "memory_budget_bytes": sizes.memory_budget_bytes,
    }
    text = "\n".join((found.line, *sizes.lines, *found.details))
    return form.show(document, text, as_json=as_json)
