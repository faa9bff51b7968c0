"""The roles that `luwu up` starts, a node, a switch or both, and the lines by which others join.

Several nodes are started one after the other. Each is given by --join what the one before printed,
so it knows the addresses of all before it, and prints them with its own:

    luwu up --role node --optimizer-nodes 2                      prints URL 0, of node 0
    luwu up --role node --number 1 --join URL-0                  prints URL 1, of both
    luwu up --role switch --join URL-1

A node on a host of its own has all of its --memory-budget, and keeps its pages in --state, in
`node-N`. It takes the place of a lost one by its number; what it prints names it in place of that
one:

    luwu up --role node --number 0 --join URL-1 --bind ELSEWHERE

Each switch of a tree reads the same file, so it knows its parent, its children and its workers. It
joins its parent by the file or URL that the parent printed. A switch with workers alone listens by
shared memory for those of its own host, unless --bind says where others reach it. In one --run-dir
nodes and switches find each other by files:

    connect-node.json       written by node 0              read by node 1 and the root
    connect-node-1.json     written by node 1              read by the root
    connect-top.json        written by the switch `top`    read by the switches below it
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from luwu.aggregate import make_aggregator
from luwu.base import loopback
from luwu.base.config import KEYS, Resolved, RunConfig, value_text
from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from luwu.base.tree import NODE, Place, Tree, groups_text, ranges_text, tree_of_hosts
from luwu.join.connection import Connection, file_of, join, switch_file, write_connection
from luwu.launch.network import tree_of
from luwu.launch.nodes import check_nodes, node_role
from luwu.launch.processes.console import Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.serving import (
    STATE_DIRECTORY,
    add_leaf,
    add_node,
    add_switch,
    connection_of,
    new_job,
    serve,
    state_directory,
)
from luwu.launch.sizes import decide_sizes
from luwu.launch.specs import SwitchEnds, job_spec
from luwu.launch.starting import (
    beginning,
    first_step,
    log_text,
    say_other_tree,
    say_security,
    say_start,
    start_text,
    state_text,
    workers_text,
)
from luwu.launch.supervisor import Supervisor
from switch_emu.store.striped import node_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """One `luwu up`: what was asked for, and what starts it."""

    resolved: Resolved
    role: str | None
    """`switch` or `node`; None: both."""
    name: str | None
    """The switch's name in a tree."""
    number: int
    """The node's number."""
    supervisor: Supervisor
    console: Console
    should_stop: Callable[[], bool]

    @property
    def config(self) -> RunConfig:
        """The configuration of the command."""
        return self.resolved.config

    @property
    def run(self) -> RunDirectory:
        """The directory of the run."""
        return self.supervisor.run

    def written(self) -> list[Path]:
        """The files by which others join what is started here."""
        if self.name is not None:
            return [self.run.file(switch_file(self.name))]
        if self.role == "node":
            own = self.run.file(node_file(self.number))
            return [own, self.run.connect_file] if self.config.no_switch else [own]
        return [self.run.connect_file]

    def start(self) -> None:
        """Start what was asked for, and say how to join it. Raises ConfigError and others."""
        if self.name is not None:
            _start_in_tree(self, self.name)
            return
        start = {None: _start_both, "switch": _start_switch, "node": _start_node}[self.role]
        connection = start(self)
        self.console.detail(f"job     {connection.job}, {connection.world_size} workers")
        for endpoint in (connection.node, *connection.more_nodes):
            self.console.detail(f"node    {endpoint}")
        if connection.switch is not None:
            self.console.detail(f"switch  {connection.switch}")
        say_security(self.console, connection)
        if self.config.resume and self.role != "switch" and not self.number:
            say_other_tree(self.console, self.run, self.config)
        if self.role == "node" and not self.config.no_switch:
            _say_next_role(self, connection)
        else:
            _say_workers(self, connection)


def node_file(number: int) -> str:
    """The file with the endpoints of an optimizer node and of those before it."""
    return f"connect-{node_role(number)}.json"


def _start_both(up: Up) -> Connection:
    """Start switches and nodes here."""
    config, run = up.config, up.run
    state = state_directory(config, STATE_DIRECTORY)
    sizes = decide_sizes(config, state)
    what = f"job for {workers_text(config.workers)}"
    say_start(up.console, start_text(what, config, state, sizes, run), sizes)
    connection = serve(up.supervisor, config, state=state, sizes=sizes, say=up.console.detail)
    if config.resume:
        up.console.detail(beginning(state, first_step(run)))
    return connection


def _start_switch(up: Up) -> Connection:
    """Start the only switch of a job."""
    config = up.config
    node = _join_nodes(up)
    up.console.say(
        f"luwu: switch for {workers_text(node.world_size)}, of the node at {node.node}; "
        f"{log_text(up.run)}"
    )
    if node.tree:
        raise ConfigError(
            "tree: the node was started with a tree of switches; give --tree the same file, "
            "and say with --name which switch this is"
        )
    tree = tree_of_hosts(node.world_size, node.hosts)
    ends = SwitchEnds(
        listen=config.bind or loopback.endpoint(),
        parent=node.node,
        more_parents=tuple(node.more_nodes),
        parent_files=_node_files(up, node.optimizer_nodes),
        advertise=config.advertise,
    )
    endpoint = add_switch(
        up.supervisor, config, node, tree, tree.root, ends, key_name=config.key_name
    )
    connection = replace(node, switch=endpoint, more_nodes=(), insecure=config.insecure)
    write_connection(up.run.connect_file, connection)
    return connection


def _start_node(up: Up) -> Connection:
    """Start a node and write where it is, and where those before it are. Raises ConfigError."""
    config, directory, number = up.config, up.run, up.number
    before: Connection | None = None
    if number or config.join is not None:
        file = directory.file(node_file(max(0, number - 1)))
        before = _join_parent(up, file)
        config = _as_before(up, before)
    make_aggregator(config.aggregate, config.workers)  # rejected before anything is started
    check_nodes(config, None)
    count = config.optimizer_nodes
    state = state_directory(config, STATE_DIRECTORY)
    own_state = None if state is None else node_directory(state, number, count)
    alone = replace(config, optimizer_nodes=1, replicas=1, transport="tcp")
    # Whoever joins by a URL that was written by hand need not know of extents.
    sizes = decide_sizes(alone, own_state, auto_extent=False)
    who = "node" if count == 1 else f"node {number}"
    text = (
        f"luwu: {who} for {workers_text(config.workers)}; {state_text(config, own_state)}; "
        f"memory {format_bytes(sizes.memory_budget_bytes)}; {log_text(directory)}"
    )
    say_start(up.console, text, sizes)
    for line in sizes.lines:
        up.console.detail(line)
    job = (config.job or new_job()) if before is None else before.job
    shared = job_spec(  # separate roles talk over tcp: there are no arenas
        config, job=job, chunk_bytes=sizes.chunk_bytes, extent_chunks=sizes.extent_chunks
    )
    endpoint = add_node(
        up.supervisor, config, shared, number, listen=config.bind or loopback.endpoint(),
        advertise=config.advertise, memory_budget_bytes=sizes.memory_budget_bytes, state=state,
        key_name=config.key_name,
    )  # fmt: skip
    if before is None:
        connection = connection_of(config, shared, node=endpoint)
    else:
        nodes = [before.node, *before.more_nodes]
        nodes[number : number + 1] = [endpoint]
        connection = replace(before, node=nodes[0], more_nodes=tuple(nodes[1:]))
    write_connection(directory.file(node_file(number)), connection)
    if config.no_switch:
        write_connection(directory.connect_file, connection)
    return connection


def _as_before(up: Up, before: Connection) -> RunConfig:
    """The settings of the nodes before this one, which hold for it too. Raises ConfigError."""
    resolved, config, number, count = up.resolved, up.config, up.number, before.optimizer_nodes
    if not resolved.is_default("optimizer_nodes") and config.optimizer_nodes != count:
        raise ConfigError(
            f"optimizer_nodes: {config.optimizer_nodes} asked for, but node 0 at {before.node} was "
            f"started with {count}; leave --optimizer-nodes out"
        )
    if not resolved.is_default("replicas") and config.replicas != before.replicas:
        raise ConfigError(
            f"replicas: {config.replicas} asked for, but node 0 at {before.node} was started with "
            f"{before.replicas}; leave --replicas out"
        )
    known = 1 + len(before.more_nodes)
    if number > known or number >= count:
        following = f"is node {known}" if known < count else "is the switch"
        raise ConfigError(
            f"number: what is joined names {known} of {count} optimizer nodes; the next to start "
            f"{following}, this is node {number}"
        )
    config = replace(
        config, workers=before.world_size, optimizer_nodes=count, chunk=before.chunk_bytes,
        extent=before.extent_bytes, replicas=before.replicas, hosts=before.hosts,
    )  # fmt: skip
    _check_same_tree(before, "" if config.tree is None else groups_text(tree_of(config)))
    return config


def _join_parent(up: Up, file: Path) -> Connection:
    """A switch's parent: --join, or a file in the same --run-dir. Raises ConfigError."""
    config = up.config
    parent = join(
        config.join or str(file), timeout_s=config.connect_timeout, say=up.console.waiting,
        should_stop=up.should_stop,
    )  # fmt: skip
    if not up.resolved.is_default("workers") and config.workers != parent.world_size:
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


def _join_nodes(up: Up) -> Connection:
    """The endpoints of all optimizer nodes, for the switch above all others. Raises ConfigError."""
    found = _join_parent(up, up.run.file(node_file(0)))
    last = found.optimizer_nodes - 1
    if len(found.more_nodes) < last and up.config.join is None:
        found = _join_parent(up, up.run.file(node_file(last)))
    if len(found.more_nodes) != last:
        raise ConfigError(
            f"join: it names {1 + len(found.more_nodes)} of {last + 1} optimizer nodes; give what "
            f"the last of them, luwu up --role node --number {last}, printed"
        )
    return found


def _files_above(up: Up, names: Sequence[str]) -> tuple[str, ...]:
    """The connection files in which a switch looks for its parents again.

    Those of these names, beside the file of --join or in the run directory, where a node or switch
    that takes the place of another one writes its own; else the file of --join.
    """
    joined = None if up.config.join is None else file_of(up.config.join)
    folder = up.run.path if joined is None else joined.parent
    files = (folder / name for name in names)
    return tuple(str(file if joined is None or file.exists() else joined) for file in files)


def _node_files(up: Up, count: int) -> tuple[str, ...]:
    """The same for all optimizer nodes."""
    return _files_above(up, [node_file(number) for number in range(count)])


def _start_in_tree(up: Up, name: str) -> None:
    """Start one switch of the tree and say how to join it. Raises ConfigError."""
    config, directory = up.config, up.run
    more_parents: tuple[str, ...] = ()
    if config.tree is None:
        parent = _join_parent(up, directory.connect_file)
        tree = tree_of_hosts(parent.world_size, parent.hosts if parent.lacks_switches else 1)
        place = tree.named(name)
        if place.parent == NODE:
            raise ConfigError(f"name: {name} is above the switches of hosts; leave --name out")
        files = _files_above(up, [directory.connect_file.name])
    else:
        tree = tree_of(config)
        place = tree.named(name)
        if place.parent == NODE:
            parent = _join_nodes(up)
            more_parents, files = parent.more_nodes, _node_files(up, parent.optimizer_nodes)
        else:
            file = directory.file(switch_file(place.parent))
            parent = _join_parent(up, file)
            files = _files_above(up, [file.name])
        _check_same_tree(parent, groups_text(tree))
    connection = add_leaf(
        up.supervisor, config, parent, tree, place, files=files, more_parents=more_parents
    )
    write_connection(directory.file(switch_file(name)), connection)
    up.console.detail(f"parent  {place.parent} at {parent.endpoint}")
    _say_tree(up, tree, place, connection)


def _check_same_tree(parent: Connection, groups: str) -> None:
    if parent.tree != groups:
        raise ConfigError(
            f"tree: what listens at {parent.endpoint} was started with the tree "
            f"{parent.tree or 'of one switch'}, this role with {groups or 'one switch'}; give all "
            "roles the same --tree"
        )


def _say_tree(up: Up, tree: Tree, place: Place, connection: Connection) -> None:
    """How to join a switch of a tree: by the file, where workers do so by shared memory."""
    config, console, directory = up.config, up.console, up.run
    file = directory.file(switch_file(place.name))
    console.say(
        f"luwu: switch {place.name} for {workers_text(connection.world_size)}, below "
        f"{place.parent}; {log_text(directory)}"
    )
    console.detail(f"job     {connection.job}, {connection.world_size} workers")
    console.detail(f"switch  {connection.endpoint}")
    console.detail(f"file    {file} (mode 600)")
    say_security(console, connection)
    for child in tree.below(place):
        start = (
            f"luwu up --role switch{_keys_flag(config)} --tree {config.tree} --name {child.name}"
        )
        workers = _worker_flags(config, is_counted=True)
        console.say(f"join    {start}{workers} --join '{connection.url()}'")
    for leaf in connection.leaves:
        where = file if connection.arena_bytes else f"'{connection.url(leaf)}'"
        start = f"luwu run{_keys_flag(config)} --join {where}"
        console.say(f"join    {start} --ranks {leaf.ranks} SCRIPT")


def _say_next_role(up: Up, connection: Connection) -> None:
    """How to start the role that is next, once a node is there."""
    config, known = up.config, 1 + len(connection.more_nodes)
    file = up.run.file(node_file(up.number))
    up.console.detail(f"file    {file} (mode 600)")
    tree = "" if config.tree is None else f" --tree {config.tree}"
    start = f"luwu up --role switch{_keys_flag(config)}{tree}"
    if known < connection.optimizer_nodes:
        start = f"luwu up --role node{_keys_flag(config)} --number {known}{tree}"
    elif tree:
        start += f" --name {tree_of(config).root.name}"
    start += _worker_flags(config, is_counted=config.tree is not None)
    up.console.say(f"join    {start} --join {file}")
    up.console.say(f"or      {start} --join '{connection.url()}'")


def _say_workers(up: Up, connection: Connection) -> None:
    """How workers join, once all that they need is there."""
    up.console.detail(f"file    {up.run.connect_file} (mode 600)")
    start = f"luwu run{_keys_flag(up.config)}"
    if connection.hosts > 1:
        tree = tree_of_hosts(connection.world_size, connection.hosts)
        first, second, *more = (ranges_text(place.workers) for place in tree.below(tree.root))
        others = f"--ranks {second}" + ", ..." * bool(more)
        up.console.say(f"join    {start} --join '{connection.url()}' --ranks {first} SCRIPT")
        up.console.say(f"        on one host, and with {others} on the others")
        return
    up.console.say(f"join    {start} --join {up.run.connect_file} SCRIPT")
    if connection.endpoint.startswith("tcp://") and not connection.leaves:
        up.console.say(f"or      {start} --join '{connection.url()}' SCRIPT")
        if up.config.bind is not None:  # other hosts may reach it
            up.console.say("        with --ranks 0-1, --ranks 2-3, ... on several hosts")


def _keys_flag(config: RunConfig) -> str:
    """The flag that a joining command needs where there are keys; `join` lines have it."""
    return "" if config.keys is None else f" --keys {shlex.quote(str(config.keys))}"


def _worker_flags(config: RunConfig, *, is_counted: bool) -> str:
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
