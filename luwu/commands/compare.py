"""`luwu compare`: the same job by several arms, then a table and a report."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from luwu.aggregate import FLOAT32
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.config import KEYS, Resolved, RunConfig
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.json_file import write_json
from luwu.base.quantities import format_bytes
from luwu.commands import form
from luwu.commands.outcome import (
    REPORT_FILE,
    keep_failure,
    keep_report,
    write_outcome,
    write_resolved,
)
from luwu.compare.arm import IN_RAM, LUWU_ARMS, config_of_arm, run_arm
from luwu.compare.comparison import comparison
from luwu.launch.network import links_of
from luwu.launch.processes.console import LAUNCHER, Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.processes.stopping import stop_requests
from luwu.launch.sizes import Sizes, decide_sizes, node_plan
from luwu.launch.starting import log_text, workers_text
from luwu.report.table import table_text
from workers.data_file import check_data_file

OF_ALL_ARMS: Final = ("dilation", "grace", "link", "reshard_after_forward", "seed")
"""Keys of switch and node that other arms heed too, or that others reject."""
STATE_KEYS: Final = ("state_dtype", "master_dtype")
"""Keys of the optimizer's state, which other arms keep in float32."""


@form.command(
    "compare",
    "luwu compare --arms luwu,fsdp --layers 6 --width 256 --steps 60",
    "luwu compare --arms luwu,luwu_ram --memory-budget 2MiB",
    keys=form.keys_of("compare"),
)
@click.option("--open", "is_opened", is_flag=True, help="open the report in a browser at the end")
@form.VERBOSE
def run(resolved: Resolved, is_opened: bool, verbose: bool) -> int:
    """Train the built-in GPT in several ways (arms) on the same model, data and seed; then print a
    table of times, memory, traffic and losses, and write a report."""
    started_ns = SYSTEM_CLOCK.now_ns()
    # What is compared is undisturbed; a file of keys may have these for `luwu run`.
    config = replace(resolved.config, resume=False, on_worker_loss="stop")
    _check(resolved)
    configs = {name: config_of_arm(name, config) for name in config.arms}
    sizes = {name: decide_sizes(each, each.state) for name, each in configs.items()}
    for name in {*config.arms} & {*LUWU_ARMS}:
        node_plan(configs[name], sizes[name])  # raises for a budget that is too small
    run_directory = RunDirectory.create(config.run_dir)
    console = Console(sys.stderr, details=verbose, log=run_directory.log(LAUNCHER))
    write_resolved(run_directory, resolved, "compare")
    console.detail(f"run directory {run_directory.path}")
    _say_start(config, sizes, run_directory, console)
    with stop_requests() as should_stop:
        try:
            arms = [
                run_arm(name, each, sizes[name], run_directory, console, should_stop)
                for name, each in configs.items()
            ]
        except LuwuError as error:
            keep_failure(run_directory, error)
            raise
    document = comparison(config, arms)
    _show(run_directory, document, config, console)
    code = check_weights(document, config.aggregate, console)
    write_outcome(run_directory, code, "finished" if code == 0 else "weights differ")
    if keep_report(run_directory) is not None:
        console.say(f"report  {run_directory.file(REPORT_FILE)}")
    console.say(f"took    {(SYSTEM_CLOCK.now_ns() - started_ns) / 1e9:.0f} s")
    if is_opened:
        webbrowser.open(run_directory.file(REPORT_FILE).as_uri())
    return code


def check_weights(document: dict[str, Any], aggregate: str, console: Console) -> int:
    """1 if arms of LuWu that train alike end with different weights; 0 else."""
    digests = {arm["weights_digest"] for arm in document["arms"] if arm["name"] in LUWU_ARMS}
    if len(digests) < 2 or aggregate != FLOAT32:  # integers of chunks of another size may differ
        return 0
    console.say(
        f"{' and '.join(LUWU_ARMS)} end with DIFFERENT weights, which must be the same bit for "
        "bit, wherever the state is kept; please report it, with the run directory"
    )
    return 1


def _say_start(
    config: RunConfig, sizes: dict[str, Sizes], run_directory: RunDirectory, console: Console
) -> None:  # fmt: skip
    """Say what is compared, and where the rest is written."""
    budgets = [sizes[name].memory_budget_bytes for name in config.arms if name in LUWU_ARMS]
    memory = " or ".join(dict.fromkeys(map(format_bytes, budgets)))
    console.say(
        f"luwu: compare {', '.join(config.arms)} with {workers_text(config.workers)}; "
        f"{f'memory {memory}; ' if memory else ''}{log_text(run_directory)}"
    )
    for warning in dict.fromkeys(line for each in sizes.values() for line in each.warnings):
        console.say(warning)


def _check(resolved: Resolved) -> None:
    config = resolved.config
    if config.data is not None:
        check_data_file(config.data)
    if config.json not in (None, "-") and not Path(str(config.json)).absolute().parent.is_dir():
        raise ConfigError(f"json: no directory for {config.json}; make it first")
    _check_network(resolved)
    if IN_RAM in config.arms and config.optimizer_nodes > 1:
        raise ConfigError(
            f"optimizer_nodes: {config.optimizer_nodes} asked for, but {IN_RAM} keeps its state in "
            "the memory of one node; leave it out of --arms, or leave --optimizer-nodes out"
        )


def _check_network(resolved: Resolved) -> None:
    """Refuse settings that no arm heeds: any flag, and dtypes of the state from any source."""
    config = resolved.config
    if {*LUWU_ARMS} & {*config.arms}:
        return
    if not links_of(config).is_ideal or config.disk_rate is not None:
        raise ConfigError(
            "link: only arms with a switch run over emulated links and disks; add luwu to --arms, "
            "or leave --link and --disk-rate out"
        )
    for name, key in KEYS.items():
        if "compare" not in key.verbs or not (key.roles or name in STATE_KEYS):
            continue
        origin = resolved.origins[name]
        is_said_here = origin == f"flag {key.flag}"
        changes_numbers = name in STATE_KEYS and not resolved.is_default(name)
        if name not in OF_ALL_ARMS and (is_said_here or changes_numbers):
            raise ConfigError(
                f"{name} ({origin}): only arms with a switch heed it; add luwu to --arms, or leave "
                "it out"
            )


def _show(
    run_directory: RunDirectory, document: dict[str, Any], config: RunConfig, console: Console
) -> None:  # fmt: skip
    """Keep the results and print them."""
    write_json(run_directory.file("result.json"), document)
    if config.json == "-":
        form.print_json(document)
        console.say(table_text(document))
    else:
        print(table_text(document))
        if config.json is not None:
            write_json(Path(config.json).absolute(), document)
