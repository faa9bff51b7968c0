"""`luwu up`: switch and node, on one host or each on its own, and the line to join them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from luwu.base.clock import sleep
from luwu.base.config import KEYS, Resolved, RunConfig
from luwu.base.errors import ConfigError, Interrupted, LuwuError
from luwu.base.limits import NODE_COUNT_MAX
from luwu.base.parsers import one_of, whole
from luwu.commands import form
from luwu.commands.outcome import keep_failure, keep_report, write_outcome, write_resolved
from luwu.commands.up_roles import Up
from luwu.join.connection import file_of
from luwu.launch.network import tree_of
from luwu.launch.nodes import fold_nodes, node_role
from luwu.launch.processes.console import LAUNCHER, Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.processes.stopping import stop_requests
from luwu.launch.serving import STATE_DIRECTORY, state_directory
from luwu.launch.specs import check_keys
from luwu.launch.supervisor import POLL_S, Supervisor
from luwu.launch.worker_loss import check_worker_loss


@form.command(
    "up",
    "luwu up --workers 4 --state gpt-state",
    "luwu up --role node --workers 4 --keys luwu-keys --bind tcp://10.0.0.5:7000",
    keys=form.keys_of("up"),
)
@click.option(
    "--role", type=form.Value("switch|node", one_of("switch", "node")), help="start only this role"
)
@click.option("--name", type=form.Value("NAME"), help="name of this switch in --tree")
@click.option(
    "--number",
    type=form.Value("N", whole(0, NODE_COUNT_MAX - 1)),
    help="number of this optimizer node, from 0",
)
@form.VERBOSE
def run(
    resolved: Resolved, role: str | None, name: str | None, number: int | None, verbose: bool
) -> int:  # fmt: skip
    """Start a switch and an optimizer node for one job, print how to join them, and wait for
    workers.

    On separate hosts, start luwu up --role node, then luwu up --role switch --join FILE|URL; with a
    shared --run-dir they need no --join and start in any order. With several optimizer nodes, each
    except the first has a --number and joins the one before it. In a tree of switches, each has a
    --name and joins its parent.

    A lost node or switch may be started on another host: a node with its --number and the --join
    that the last node printed, a switch as before. Processes that joined by a file read it again,
    look host names up again, and try each of --advertise ADDRESS,ADDRESS.
    """
    _check(resolved, role, name)
    _check_number(resolved.config, role, number)
    return _serve(resolved, role, name, number or 0, verbose=verbose)


def _serve(
    resolved: Resolved, role: str | None, name: str | None, number: int, *, verbose: bool
) -> int:  # fmt: skip
    run_directory = RunDirectory.create(resolved.config.run_dir, is_shared=role is not None)
    who = role if name is None else f"{role}-{name}"
    if role == "node":
        who = node_role(number)
    log = LAUNCHER if who is None else f"{LAUNCHER}-{who}"
    console = Console(sys.stderr, details=verbose, log=run_directory.log(log))
    write_resolved(run_directory, resolved, "up", who)
    console.detail(f"run     {run_directory.path}")
    with stop_requests() as should_stop:
        supervisor = Supervisor(
            run_directory,
            console,
            restarts_max=resolved.config.restarts,
            should_stop=should_stop,
            connect_timeout_s=resolved.config.connect_timeout,
            records=f"processes-{who}.json" if role else "processes.json",
        )
        up = Up(
            resolved=resolved, role=role, name=name, number=number, supervisor=supervisor,
            console=console, should_stop=should_stop,
        )  # fmt: skip
        written = up.written()
        _remove_stale([*written, run_directory.file("outcome.json")], resolved.config)
        ours: dict[Path, tuple[int, int]] = {}
        try:
            with supervisor:
                up.start()
                ours = {path: _version(path) for path in written if path.exists()}
                run_directory.begin()
                while not supervisor.roles_done:
                    supervisor.poll()
                    sleep(POLL_S)
                if role is None:
                    state = state_directory(resolved.config, STATE_DIRECTORY)
                    fold_nodes(run_directory, state, resolved.config.optimizer_nodes)
        except LuwuError as error:
            keep_failure(run_directory, error)
            if not isinstance(error, Interrupted):
                raise
            console.say("stopped")
            return 0
        finally:
            _remove(ours)
    write_outcome(run_directory, 0, "finished")
    keep_report(run_directory)
    console.say("the job is finished")
    return 0


def _remove_stale(written: Sequence[Path], config: RunConfig) -> None:
    """Remove what a process that ended has written, unless a node that takes its place joins the
    job by it."""
    joined = None if config.join is None else file_of(config.join)
    for path in written:
        if path != joined:
            path.unlink(missing_ok=True)


def _version(path: Path) -> tuple[int, int]:
    """Differs for each file that was written under a name."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _remove(ours: Mapping[Path, tuple[int, int]]) -> None:
    """No worker can join any more what was started here; files of a successor stay."""
    for path, version in ours.items():
        if path.exists() and _version(path) == version:
            path.unlink(missing_ok=True)


def _check_number(config: RunConfig, role: str | None, number: int | None) -> None:
    """The number of this node, and the endpoints that it and the others join."""
    if number is not None and role != "node":
        raise ConfigError("number: it says which optimizer node this is; give --role node too")
    if number and config.join is None and config.run_dir is None:
        raise ConfigError(
            f"node {number} needs the address of node {number - 1}: add --join FILE|URL, as luwu "
            "up --role node printed it, or the same --run-dir for all"
        )
    if (number or config.join is not None) and role == "node" and config.job is not None:
        raise ConfigError("job: a node learns it from --join; give --job to the first node alone")
    if config.join is not None and role != "switch" and number is None:
        raise ConfigError(
            "join: only luwu up --role switch, or --role node with its --number, joins something; "
            "leave it out"
        )


def _check_heeded(resolved: Resolved, role: str | None) -> None:
    """A file of keys may serve both roles; a flag is meant for this one. Raises ConfigError."""
    for name, key in KEYS.items():
        is_own = resolved.config.no_switch and name in ("fidelity", "slots")
        is_of_other = role is not None and key.roles and role not in key.roles
        if is_of_other and resolved.origins[name].startswith("flag") and not is_own:
            (other,) = key.roles
            raise ConfigError(
                f"{name}: it is that of the {other}; give {key.flag} to luwu up --role "
                f"{other}, which starts it, and leave it out here"
            )


def _check(resolved: Resolved, role: str | None, name: str | None) -> None:
    config = resolved.config
    _check_heeded(resolved, role)
    if role != "switch" or config.on_worker_loss != "drop":  # --join has the number of workers
        check_worker_loss(config)
    if name is not None and role != "switch":
        raise ConfigError("name: it says which switch of a tree this is; give --role switch too")
    if role == "switch" and config.tree is not None and name is None:
        raise ConfigError("tree: give --name NAME too: which of its switches this is")
    if role is not None and config.transport in ("ipc", "shm"):
        raise ConfigError("transport: separate roles talk over tcp; leave --transport out")
    if role == "switch" and config.no_switch:
        raise ConfigError("no_switch: there is no switch to start; leave --no-switch out")
    if role == "switch" and config.join is None and config.run_dir is None:
        raise ConfigError(
            "the switch needs the address of its node: add --join FILE|URL, as luwu up --role "
            "node printed it, or the same --run-dir for both"
        )
    if role is None and config.key_name is not None:
        raise ConfigError(
            "key_name: switch and node each have their own key, called by their names; leave "
            "--key-name out, or start them one by one with --role"
        )
    check_keys(config)
    if role is None and config.bind is not None and config.tree is not None:
        raise ConfigError(
            "bind: a tree on one host has workers on this host; for workers elsewhere start its "
            "switches one by one with --role switch --name NAME"
        )
    if config.bind is not None and config.transport in ("ipc", "shm"):
        raise ConfigError(
            f"bind: with --transport {config.transport} the sockets are in a directory of our own"
        )
    if role is None and config.hosts > 1 and config.bind is None:
        raise ConfigError(
            "hosts: the switches of other hosts connect to an address; give --bind "
            "tcp://ADDRESS:PORT"
        )
    if name is not None and config.tree is not None:
        if resolved.is_default("workers"):
            raise ConfigError("workers: the tree of --tree is checked with it; give --workers N")
        tree_of(config).named(name)  # raises for a switch that the tree does not have
