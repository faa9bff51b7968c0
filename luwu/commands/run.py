"""`luwu run`: start a training script as workers, with a switch and a node, or join them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from luwu.base.config import KEYS, Resolved, RunConfig
from luwu.base.errors import ConfigError, Interrupted, LuwuError
from luwu.base.tree import parse_ranks, tree_of_hosts
from luwu.commands import form
from luwu.commands.outcome import (
    REPORT_FILE,
    keep_failure,
    keep_report,
    write_outcome,
    write_resolved,
)
from luwu.join.connection import Connection, file_of, join, write_connection
from luwu.launch.agent import Share
from luwu.launch.network import tree_of
from luwu.launch.nodes import fold_nodes
from luwu.launch.processes.console import LAUNCHER, Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.processes.stopping import stop_requests
from luwu.launch.serving import STATE_DIRECTORY, add_leaf, serve, state_directory
from luwu.launch.sizes import Sizes, decide_sizes, node_plan
from luwu.launch.specs import check_keys, key_environ
from luwu.launch.starting import (
    beginning,
    ending,
    first_step,
    log_text,
    machines_text,
    say_other_tree,
    say_security,
    say_start,
    start_text,
    stopped,
    workers_text,
)
from luwu.launch.supervisor import Supervisor, threads_per_worker
from luwu.launch.worker_loss import check_worker_loss, worker_restarts


@form.command(
    "run",
    "luwu run --workers 4 --memory-budget 2GiB --resume train.py --epochs 3",
    "luwu run --join 'tcp://10.0.0.5:7002?job=...' --ranks 4-7 train.py",
    keys=form.keys_of("run"),
)
@form.VERBOSE
@click.argument(form.SCRIPT, nargs=-1, required=True, type=form.Value("FILE|-m MODULE "))
def run(resolved: Resolved, verbose: bool, script: tuple[str, ...]) -> int:
    """Start a switch, an optimizer node and workers that run a script. With --join, start only the
    workers, of a job that already runs. Arguments after the script are passed to it."""
    config = resolved.config
    _check(resolved, script)
    run_directory = RunDirectory.create(config.run_dir)
    console = Console(sys.stderr, details=verbose, log=run_directory.log(LAUNCHER))
    write_resolved(run_directory, resolved, "run")
    console.detail(f"run directory {run_directory.path}")
    command = [*script]
    if config.engine == "ray":
        _run_by_ray(run_directory, resolved, command, console)
        write_outcome(run_directory, 0, "finished")
        return 0
    served = _run_here(run_directory, resolved, command, console)
    write_outcome(run_directory, 0, "finished")
    first = None if served is None else served.first_step
    said = ending(run_directory, config.state or STATE_DIRECTORY, first)
    if said is not None:
        console.say(said)
    document = keep_report(run_directory)
    if document is not None:
        _say_report(run_directory, document, console)
    return 0


class _Served(NamedTuple):
    """Facts of our own switch and node, once they listen."""

    state: Path | None
    sizes: Sizes
    first_step: int | None


def _run_here(
    run_directory: RunDirectory, resolved: Resolved, script: list[str], console: Console
) -> _Served | None:  # fmt: skip
    """Start the processes, or the workers alone, and wait until they have ended."""
    from luwu.estimate.script import StartedJob, job_environ

    config = resolved.config
    served, when = None, None
    with stop_requests() as should_stop:
        supervisor = Supervisor(
            run_directory,
            console,
            restarts_max=config.restarts,
            should_stop=should_stop,
            connect_timeout_s=config.connect_timeout,
        )
        supervisor.worker_environ = key_environ(config)
        with _failure_written(run_directory, resolved, script), supervisor:
            if config.join is None:
                supervisor.worker_environ |= job_environ(run_directory)
                when = run_directory.connect_file  # the agent imports torch until they listen
                connect, share = str(when), Share.of_all(config.workers)
            else:
                connect, connection = _join(resolved, console, should_stop)
                config = replace(
                    config, on_worker_loss=connection.on_worker_loss,
                    drop_after=connection.drop_after_s, insecure=connection.insecure,
                )  # fmt: skip
                share = _share(config, connection)
                _say_joined(share, connection, run_directory, console)
                if connection.lacks_switches:
                    connect = _start_switch(supervisor, config, connection, share)
            supervisor.train(
                script, share=share, connect=connect, sink=console.pass_on,
                restarts_max=worker_restarts(config), on_loss=config.on_worker_loss, when=when,
            )  # fmt: skip
            if config.join is None:
                served = _serve(supervisor, config, console)
                started = StartedJob(
                    run_directory, config, served.sizes, served.state,
                    say=console.say, detail=console.detail,
                )  # fmt: skip
                supervisor.watch.append(started.look)
            run_directory.begin()
            count, threads = len(share.ranks), threads_per_worker(len(share.ranks))
            console.detail(f"{count} workers, {threads} compute threads each (OMP_NUM_THREADS)")
            supervisor.wait()
            if served is not None:
                fold_nodes(run_directory, served.state, config.optimizer_nodes)
    return served


def _serve(supervisor: Supervisor, config: RunConfig, console: Console) -> _Served:
    """Start a switch and a node. Raises ConfigError."""
    run_directory = supervisor.run
    state = state_directory(config, STATE_DIRECTORY)
    sizes = decide_sizes(config, state)
    node_plan(config, sizes)  # raises for a budget that is too small
    what = workers_text(config.workers)
    say_start(console, start_text(what, config, state, sizes, run_directory), sizes)
    connection = serve(supervisor, config, state=state, sizes=sizes, say=console.detail)
    say_security(console, connection)
    step = first_step(run_directory)
    if config.resume:
        console.say(beginning(state, step))
        say_other_tree(console, run_directory, config)
    return _Served(state, sizes, step)


def _run_by_ray(
    run_directory: RunDirectory, resolved: Resolved, script: list[str], console: Console
) -> None:  # fmt: skip
    """Let Ray place and watch the processes."""
    from luwu.engines.ray_engine import RayEngine

    what = f"{workers_text(resolved.config.workers)}, {machines_text(resolved.config)}, by Ray"
    console.say(f"luwu: {what}; {log_text(run_directory)}")
    with (
        _failure_written(run_directory, resolved, script),
        stop_requests() as should_stop,
        RayEngine(run_directory, resolved, console, should_stop) as engine,
    ):
        run_directory.begin()
        engine.work(script)


@contextmanager
def _failure_written(
    run_directory: RunDirectory, resolved: Resolved, script: list[str]
) -> Iterator[None]:
    """Write the outcome of a run that fails, with the command that continues one that was stopped,
    and let no worker join it afterwards."""
    try:
        yield
    except LuwuError as cause:
        error = cause
        if isinstance(cause, Interrupted) and resolved.config.join is None:
            state = state_directory(resolved.config, STATE_DIRECTORY)
            error = Interrupted(stopped(run_directory, state, resolved.given, script))
        keep_failure(run_directory, error)
        if error is cause:
            raise
        raise error from cause
    finally:
        run_directory.connect_file.unlink(missing_ok=True)


def _say_joined(
    share: Share, connection: Connection, run_directory: RunDirectory, console: Console
) -> None:  # fmt: skip
    console.say(
        f"luwu: {workers_text(len(share.ranks))} of job {connection.job} at {connection.endpoint}; "
        f"{log_text(run_directory)}"
    )
    say_security(console, connection)


def _say_report(
    run_directory: RunDirectory, document: Mapping[str, Any], console: Console
) -> None:  # fmt: skip
    """Say where the report is, and, where a node of this command decided steps, what it says."""
    from luwu.report.verdict import verdict

    for sentence in verdict(document) if document["steps"]["done"] else ():
        console.say(sentence)
    console.say(f"report  {run_directory.file(REPORT_FILE)}")


def _join(
    resolved: Resolved, console: Console, should_stop: Callable[[], bool]
) -> tuple[str, Connection]:
    """LUWU_CONNECT of what runs already, and what it says."""
    config = resolved.config
    assert config.join is not None
    connection = join(
        config.join, timeout_s=config.connect_timeout, say=console.waiting, should_stop=should_stop
    )
    if not resolved.is_default("workers") and config.workers != connection.world_size:
        raise ConfigError(
            f"workers: {config.workers} asked for, but the job at {connection.endpoint} has "
            f"{connection.world_size}; leave --workers out, or start luwu up with it"
        )
    return str(file_of(config.join) or config.join), connection


def _start_switch(
    supervisor: Supervisor, config: RunConfig, connection: Connection, share: Share
) -> str:  # fmt: skip
    """Start the switch of this host, below that of the job; LUWU_CONNECT of its workers."""
    tree = tree_of_hosts(connection.world_size, connection.hosts)
    place = tree.leaf_above(share.ranks)
    assert config.join is not None
    file = file_of(config.join)
    files = () if file is None else (str(file),)
    of_host = add_leaf(supervisor, config, connection, tree, place, files=files)
    write_connection(supervisor.run.connect_file, of_host)
    return str(supervisor.run.connect_file)


def _share(config: RunConfig, connection: Connection) -> Share:
    """The workers of a job that this host starts and restarts."""
    if not connection.lacks_switches and config.switch_memory_budget is not None:
        raise ConfigError(
            f"switch_memory_budget: the job at {connection.endpoint} has no switch on this host; "
            "pass it to luwu up, and omit it with --join"
        )
    if config.ranks is None:
        return Share.of_all(connection.world_size)
    share = Share(parse_ranks(config.ranks, "ranks"), connection.world_size)
    if max(share.ranks) >= share.world_size:
        raise ConfigError(
            f"ranks: {config.ranks} asked for, but the job at {connection.endpoint} has ranks 0 to "
            f"{share.world_size - 1}"
        )
    return share


def _check(resolved: Resolved, script: Sequence[str]) -> None:
    """Raises ConfigError if what was asked for cannot be run."""
    config = resolved.config
    check_script(script)
    if config.join is not None:
        _check_join(resolved)
    elif config.ranks is not None:
        raise ConfigError(
            "ranks: this command starts all workers of its job; for some of those of another, "
            "start luwu up on one host, and give the --join that it prints"
        )
    _check_engine(config)
    check_keys(config)
    check_worker_loss(config)


def _check_join(resolved: Resolved) -> None:
    for name, key in KEYS.items():
        is_of_host = name == "switch_memory_budget"  # of its switch, where it has one
        if key.roles and "run" in key.verbs and not (is_of_host or resolved.is_default(name)):
            raise ConfigError(
                f"{name} ({resolved.origins[name]}) is a setting of the switch and the "
                f"node; pass it to luwu up, and omit it with --join"
            )


def _check_engine(config: RunConfig) -> None:
    if config.engine == "ray":
        if config.join is not None:
            raise ConfigError("join is of the local engine; leave it out with --engine ray")
        tree_of(config)  # raises for one that cannot be
    elif config.insecure:
        raise ConfigError("insecure: luwu run listens on this host alone; leave --insecure out")
    elif config.hosts > 1:
        raise ConfigError(
            "hosts: luwu run starts the workers of this host; give --hosts to luwu up, and run the "
            "line that it prints on each host, or add --engine ray"
        )


def check_script(script: Sequence[str]) -> None:
    """Raises ConfigError if there is none."""
    if [*script] == ["-m"]:
        raise ConfigError("no script to run: -m needs the name of a module after it")
    if script[0] != "-m" and not Path(script[0]).is_file():
        raise ConfigError(f"there is no script {script[0]}; name a Python file, or -m MODULE")
