"""`luwu up --role switch --name NAME --tree FILE`: one switch of a tree, on a host of its own.

Each switch of the tree reads the same file, so it knows its parent, its children and its workers.
It joins its parent by the file or URL that the parent printed; in one --run-dir, by its file:

    connect-node.json       written by the node            read by the root
    connect-top.json        written by the switch `top`    read by the switches below it

A switch with workers alone listens by shared memory for those of its own host, unless --bind says
where others reach it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from luwu.base import loopback
from luwu.base.config import KEYS, Resolved, RunConfig, value_text
from luwu.base.errors import ConfigError
from luwu.base.socket_directory import private_directory
from luwu.base.tree import NODE, Place, Tree, groups_text
from luwu.join.connection import Connection, file_of, join, write_connection
from luwu.launch.processes.console import Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.roles import SwitchEnds
from luwu.launch.serving import (
    add_switch,
    can_share,
    leaf_of,
    tree_of,
)
from luwu.launch.starting import log_text, say_joins, say_security, workers_text
from luwu.launch.supervisor import Supervisor
from luwu.launch.switch_memory import switch_plan
from luwu.transport.arena import check_arena

NODE_FILE: Final = "connect-node.json"
"""The file with the node's endpoint, for its switch; workers read the switch's connect.json."""


def node_file(number: int) -> str:
    """The file with the endpoints of an optimizer node and of those before it."""
    return NODE_FILE if number == 0 else f"connect-node-{number}.json"


def switch_file(name: str) -> str:
    """The file with the endpoint of a switch, for its children."""
    return f"connect-{name}.json"


def keys_flag(config: RunConfig) -> str:
    """The flag that a joining command needs where there are keys; `join` lines have it."""
    return "" if config.keys is None else f" --keys {shlex.quote(str(config.keys))}"


def worker_flags(config: RunConfig, *, is_counted: bool) -> str:
    """The flags about workers that all nodes and switches of a job must have in common;
    `is_counted`: with their number."""
    names = ["on_worker_loss", "drop_after", "workers_min", "workers_max"]
    if is_counted and config.workers_max is None:
        names.insert(0, "workers")
    given = {name: getattr(config, name) for name in names}
    return "".join(
        f" {KEYS[name].flag} {value_text(name, value)}"
        for name, value in given.items()
        if name == "workers" or value != KEYS[name].default
    )


def join_parent(
    resolved: Resolved, file: Path, console: Console, should_stop: Callable[[], bool]
) -> Connection:
    """A switch's parent: --join, or a file in the same --run-dir. Raises ConfigError."""
    config = resolved.config
    parent = join(
        config.join or str(file), timeout_s=config.connect_timeout, say=console.waiting,
        should_stop=should_stop,
    )  # fmt: skip
    if not resolved.is_default("workers") and config.workers != parent.world_size:
        raise ConfigError(
            f"workers: {config.workers} asked for, but the node at {parent.node} serves "
            f"{parent.world_size}; leave --workers out"
        )
    if config.on_worker_loss != parent.on_worker_loss:
        raise ConfigError(
            f"on_worker_loss: {config.on_worker_loss} here, but {parent.endpoint} was started with "
            f"{parent.on_worker_loss}; give all switches and nodes the same --on-worker-loss"
        )
    return parent


def join_nodes(
    resolved: Resolved, directory: RunDirectory, console: Console, should_stop: Callable[[], bool]
) -> Connection:  # fmt: skip
    """The endpoints of all optimizer nodes, for the switch above all others. Raises ConfigError."""
    found = join_parent(resolved, directory.file(NODE_FILE), console, should_stop)
    last = found.optimizer_nodes - 1
    if len(found.more_nodes) < last and resolved.config.join is None:
        found = join_parent(resolved, directory.file(node_file(last)), console, should_stop)
    if len(found.more_nodes) != last:
        raise ConfigError(
            f"join: it names {1 + len(found.more_nodes)} of {last + 1} optimizer nodes; give what "
            f"the last of them, luwu up --role node --number {last}, printed"
        )
    return found


def files_above(
    config: RunConfig, directory: RunDirectory, names: Sequence[str]
) -> tuple[str, ...]:  # fmt: skip
    """The connection files in which a switch looks for its parents again.

    Those of these names, beside the file of --join or in the run directory, where a node or switch
    that takes the place of another one writes its own; else the file of --join.
    """
    joined = None if config.join is None else file_of(config.join)
    folder = directory.path if joined is None else joined.parent
    files = (folder / name for name in names)
    return tuple(str(file if joined is None or file.exists() else joined) for file in files)


def node_files(config: RunConfig, directory: RunDirectory, count: int) -> tuple[str, ...]:
    """The same for all optimizer nodes."""
    return files_above(config, directory, [node_file(number) for number in range(count)])


def start_in_tree(
    supervisor: Supervisor, resolved: Resolved, name: str, console: Console,
    should_stop: Callable[[], bool],
) -> None:  # fmt: skip
    """Start one switch of the tree and say how to join it. Raises ConfigError."""
    config, directory = resolved.config, supervisor.run
    tree = tree_of(config)
    place = tree.named(name)
    if place.parent == NODE:
        parent = join_nodes(resolved, directory, console, should_stop)
        files = node_files(config, directory, parent.optimizer_nodes)
    else:
        file = directory.file(switch_file(place.parent))
        parent = join_parent(resolved, file, console, should_stop)
        files = files_above(config, directory, [file.name])
    if parent.tree != groups_text(tree):
        raise ConfigError(
            f"tree: the parent at {parent.endpoint} was started with the tree "
            f"{parent.tree or 'of one switch'}, this switch with {groups_text(tree)}; give all "
            "roles the same --tree"
        )
    listen, arena_bytes = config.bind or loopback.endpoint(), 0
    is_shared = config.bind is None and not tree.below(place) and can_share()
    if is_shared:
        supervisor.private_directory = private_directory()
        listen = f"shm://{supervisor.private_directory}/w"
        plan = switch_plan(
            config, child_count=len(tree.children(place)), extent_bytes=parent.extent_bytes,
            in_arenas=True,
        )  # fmt: skip
        arena_bytes = plan.arena_bytes
        check_arena(arena_bytes)
    asked = replace(parent, arena_bytes=arena_bytes)
    ends = SwitchEnds(
        listen=listen,
        parent=parent.endpoint,
        more_parents=tuple(parent.more_nodes),
        files=files,
        advertise=config.advertise,
    )
    endpoint = add_switch(supervisor, config, asked, tree, place, ends, key_name=config.key_name)
    connection = replace(
        asked,
        switch=endpoint,
        more_nodes=(),
        insecure=config.insecure,
        leaves=(leaf_of(place, endpoint),) if place.workers else (),
    )
    write_connection(directory.file(switch_file(name)), connection)
    console.detail(f"parent  {place.parent} at {parent.endpoint}")
    _say_how_to_join(console, directory, config, tree, place, connection, is_shared=is_shared)


def _say_how_to_join(
    console: Console, directory: RunDirectory, config: RunConfig, tree: Tree, place: Place,
    connection: Connection, *, is_shared: bool,
) -> None:  # fmt: skip
    """`is_shared`: its workers join by shared memory, so by the file."""
    file = directory.file(switch_file(place.name))
    console.say(
        f"luwu: switch {place.name} for {workers_text(connection.world_size)}, below "
        f"{place.parent}; {log_text(directory)}"
    )
    console.detail(f"job     {connection.job}, {connection.world_size} workers")
    console.detail(f"switch  {connection.endpoint}")
    console.detail(f"file    {file} (mode 600)")
    say_security(console, connection)
    joins = []
    for child in tree.below(place):
        keys = keys_flag(config)
        start = f"luwu up --role switch{keys} --tree {config.tree} --name {child.name}"
        workers = worker_flags(config, is_counted=True)
        joins.append(f"join    {start}{workers} --join '{connection.url()}'")
    for leaf in connection.leaves:
        where = file if is_shared else f"'{connection.url(leaf)}'"
        if config.on_worker_loss == "stop":
            joins.append(f"join    ranks {leaf.ranks}: LUWU_CONNECT={where} torchrun ... SCRIPT")
        else:
            start = f"luwu run{keys_flag(config)} --join {where}"
            joins.append(f"join    {start} --ranks {leaf.ranks} SCRIPT")
    say_joins(console, joins)
