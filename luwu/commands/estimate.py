"""`luwu estimate`: what a job of `luwu compare` would take on this machine, before it runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from luwu.base.config import Resolved
from luwu.base.errors import ConfigError
from luwu.base.json_file import write_json
from luwu.commands import form
from luwu.launch.network import links_of
from luwu.launch.processes.run_directory import RUNS_DIRECTORY
from luwu.launch.serving import decide_sizes, state_directory

SCHEMA: Final = 3
"""3: no times of a step but the least of its disk."""


@click.command(
    "estimate",
    cls=form.Command,
    keys=form.keys_of("compare"),
    examples=("luwu estimate --layers 12 --width 768 --workers 2 --memory-budget 1GiB",),
)
def run(resolved: Resolved) -> int:
    """Estimate what a job of luwu compare needs on this machine, without running it: memory of each
    process, space on disk, bytes per step on disk and links, and the least time of a step, for the
    disk."""
    config = resolved.config
    if config.json not in (None, "-") and not Path(str(config.json)).absolute().parent.is_dir():
        raise ConfigError(f"json: no directory for {config.json}; make it first")
    if not links_of(config).is_ideal or config.disk_rate is not None:
        raise ConfigError(
            "link: luwu estimate measures this machine's disk, without emulated links and disks; "
            "leave --link, --loss, --duplicate, --reorder and --disk-rate out"
        )
    from luwu.estimate.disk import THOROUGH
    from luwu.estimate.gpt import plan_gpt
    from luwu.estimate.text import estimate_text
    from workers.data_file import check_data_file

    if config.data is not None:
        check_data_file(config.data)
    if config.optimizer_nodes > 1:
        raise ConfigError(
            f"optimizer_nodes: only one node is planned, not {config.optimizer_nodes}; leave it "
            "out, and divide the disk's part by their number"
        )
    sizes = decide_sizes(config, config.state)
    state = state_directory(config, RUNS_DIRECTORY / "state")
    planned = plan_gpt(config, sizes, state=state, samples=THOROUGH)
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
