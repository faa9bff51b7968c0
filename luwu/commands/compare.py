"""`luwu compare`: the same job by several arms, then a table and a report."""

from __future__ import annotations

import math
import shutil
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
from luwu.commands.outcome import keep_failure, keep_report, write_outcome, write_resolved
from luwu.compare.arm import IN_RAM, LUWU_ARMS, config_of_arm, run_arm, script_arguments
from luwu.compare.comparison import comparison
from luwu.launch.network import links_of
from luwu.launch.processes.console import LAUNCHER, Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.processes.stopping import stop_requests
from luwu.launch.serving import Sizes, decide_sizes, node_plan
from luwu.launch.starting import log_text, shown_path, workers_text
from luwu.launch.worker_loss import check_worker_loss, drops_workers
from luwu.report.table import table_text
from workers.data_file import check_data_file

PRESETS: Final = {"demo": {"arms": "luwu,luwu_ram,fsdp", "steps": "100"}}
OF_ALL_ARMS: Final = ("dilation", "grace", "link", "reshard_after_forward", "resume", "seed")
"""Keys of switch and node that other arms heed too, or that others reject."""
STATE_KEYS: Final = ("state_dtype", "master_dtype")
"""Keys of the optimizer's state, which other arms keep in float32."""
OF_NETWORK: Final = ("worker_restarts", *STATE_KEYS)
"""Keys of neither switch nor node that other arms do not heed."""
DEMO_BUDGET_SHARE: Final = 8
"""The demo keeps one part in so many of the state in memory."""
STATE_BYTES_PER_PARAMETER: Final = 12
DEMO_LOSS_MAX: Final = 2.6
DEMO_LOSS_STEPS: Final = 20
DEMO_TIME_TEXT: Final = "one to three minutes on two processors"


@form.command(
    "compare",
    "luwu compare --arms luwu,fsdp --layers 6 --width 256 --steps 60",
    "luwu compare --preset demo",
    keys=form.keys_of("compare"),
    presets=PRESETS,
)
@click.option(
    "--preset",
    type=form.Value("demo"),
    help="three arms: luwu with an eighth of its state in RAM, luwu_ram with all of it, and fsdp",
)
@click.option("--open", "is_opened", is_flag=True, help="open the report in a browser at the end")
@form.VERBOSE
def run(resolved: Resolved, preset: str | None, is_opened: bool, verbose: bool) -> int:
    """Train the built-in GPT in several ways (arms) on the same model, data and seed; then print a
    table of times, memory, traffic and losses, and write a report."""
    started_ns = SYSTEM_CLOCK.now_ns()
    config = resolved.config
    is_demo = preset == "demo"
    _check(resolved)
    if is_demo and "luwu" in config.arms and resolved.is_default("memory_budget"):
        config = replace(config, memory_budget=demo_budget_bytes(config))
    configs = {name: config_of_arm(name, config) for name in config.arms}
    sizes = {name: decide_sizes(each, each.state) for name, each in configs.items()}
    for name in {*config.arms} & {*LUWU_ARMS}:
        node_plan(configs[name], sizes[name])  # raises for a budget that is too small
    run_directory = RunDirectory.create(config.run_dir)
    console = Console(sys.stderr, details=verbose, log=run_directory.log(LAUNCHER))
    write_resolved(run_directory, resolved, "compare")
    console.detail(f"run directory {run_directory.path}")
    _say_start(config, sizes, run_directory, console)
    if is_demo:
        console.say(f"this takes {DEMO_TIME_TEXT}; Ctrl-C stops everything")
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
    code = _finish(run_directory, document, config, console, is_demo=is_demo)
    write_outcome(run_directory, code, "finished" if code == 0 else "a loss or digest is wrong")
    report = keep_report(run_directory)
    if report is not None:
        console.say(f"report  {report}")
    _say_next(run_directory, console)
    console.say(f"took    {(SYSTEM_CLOCK.now_ns() - started_ns) / 1e9:.0f} s")
    if is_opened:
        webbrowser.open(run_directory.file("report.html").as_uri())
    return code


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


def demo_budget_bytes(config: RunConfig) -> int:
    """An eighth of the optimizer state of the model that will be trained."""
    from workers.data import BYTE_VOCAB, load_corpus
    from workers.gpt import without_storage
    from workers.options import parse_options

    options = parse_options(script_arguments("luwu", config, None))
    vocab = BYTE_VOCAB if config.data is None else load_corpus(config.data).vocab
    model = without_storage(options.gpt(vocab))
    parameters_count = sum(parameter.numel() for parameter in model.parameters())
    return parameters_count * STATE_BYTES_PER_PARAMETER // DEMO_BUDGET_SHARE


def _check(resolved: Resolved) -> None:
    config = resolved.config
    if config.resume and config.arms != ("luwu",):
        raise ConfigError(
            "resume: only luwu has a state to go on with, so the other arms would train other "
            "steps; give --arms luwu, or leave --resume out"
        )
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
    check_worker_loss(config)


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
        if "compare" not in key.verbs or not (key.roles or name in OF_NETWORK):
            continue
        origin = resolved.origins[name]
        is_said_here = origin == f"flag {key.flag}"
        changes_numbers = name in STATE_KEYS and not resolved.is_default(name)
        if name not in OF_ALL_ARMS and (is_said_here or changes_numbers):
            raise ConfigError(
                f"{name} ({origin}): only arms with a switch heed it; add luwu to --arms, or leave "
                "it out"
            )


def _finish(
    run_directory: RunDirectory, document: dict[str, Any], config: RunConfig, console: Console,
    *, is_demo: bool,
) -> int:  # fmt: skip
    write_json(run_directory.file("result.json"), document)
    if config.json == "-":
        form.print_json(document)
        console.say(table_text(document))
    else:
        print(table_text(document))
        if config.json is not None:
            write_json(Path(config.json).absolute(), document)
    if not is_demo:
        return 0
    return max(_check_losses(document, console), _check_weights(document, config, console))


def _say_next(run_directory: RunDirectory, console: Console) -> None:
    program = program_text()
    console.say(f"next    {program} report --open {shown_path(run_directory.path)}")
    console.say(
        f"        {program} compare --arms luwu,fsdp,ddp,single --layers 6 --width 256 --steps 60"
    )
    console.say(f"        {program} run --workers 2 -m workers.train --arm luwu --steps 60")


def _check_losses(document: dict[str, Any], console: Console) -> int:
    code = 0
    for arm in document["arms"]:
        last = arm["loss"][-DEMO_LOSS_STEPS:]
        mean = math.fsum(last) / len(last)
        is_low = mean < DEMO_LOSS_MAX
        console.say(
            f"{arm['name']:<8} mean loss of the last {len(last)} steps {mean:.3f}: "
            f"{'below' if is_low else 'NOT below'} {DEMO_LOSS_MAX}"
        )
        code = code if is_low else 1
    return code


def _check_weights(document: dict[str, Any], config: RunConfig, console: Console) -> int:
    """1 if arms of LuWu that train alike end with different weights; 0 else."""
    digests = {arm["weights_digest"] for arm in document["arms"] if arm["name"] in LUWU_ARMS}
    if len(digests) < 2 or drops_workers(config) or config.aggregate != FLOAT32:
        return 0  # contributors, or integers of chunks of another size, may differ
    console.say(
        f"{' and '.join(LUWU_ARMS)} end with DIFFERENT weights, which must be the same bit for "
        "bit, wherever the state is kept; please report it, with the run directory"
    )
    return 1


def program_text() -> str:
    """The program that people type in a shell: `luwu` if the shell finds it."""
    return "luwu" if shutil.which("luwu") else f"{shown_path(Path(sys.executable))} -m luwu"
