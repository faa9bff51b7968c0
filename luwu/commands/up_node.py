"""`luwu up --role node`: the optimizer node, or one of several, on a host of its own.

Several nodes are started one after the other. Each is told by --join what the one before printed,
so it knows node 0, whom it asks, and hands on where all before it are:

    luwu up --role node --optimizer-nodes 2                      prints URL 0, of node 0
    luwu up --role node --number 1 --join URL-0                  prints URL 1, of both
    luwu up --role switch --join URL-1

In one --run-dir they find each other by files: connect-node.json, connect-node-1.json, ... A node
on a host of its own has all of its --memory-budget, and keeps its pages in --state, in `node-N`.

A node takes the place of a lost one by its number; what it prints names it in place of that one:

    luwu up --role node --number 0 --join URL-1 --bind ELSEWHERE
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from luwu.aggregate import make_aggregator
from luwu.base import loopback
from luwu.base.config import Resolved, RunConfig
from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from luwu.commands.up_in_tree import join_parent, node_file
from luwu.join.connection import Connection, write_connection
from luwu.launch.nodes import check_nodes, node_role
from luwu.launch.processes.console import Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.roles import NodeEnds, job_spec, node_spec
from luwu.launch.serving import (
    STATE_DIRECTORY,
    Sizes,
    connection_of,
    decide_sizes,
    directory_of_node,
    new_job,
    state_directory,
    tree_of,
)
from luwu.launch.starting import log_text, say_start, state_text, workers_text
from luwu.launch.supervisor import Supervisor


def start_node(
    supervisor: Supervisor, resolved: Resolved, number: int, console: Console,
    should_stop: Callable[[], bool],
) -> Connection:  # fmt: skip
    """Start a node and write where it is, and where those before it are. Raises ConfigError."""
    config, directory = resolved.config, supervisor.run
    before: Connection | None = None
    if number or config.join is not None:
        file = directory.file(node_file(max(0, number - 1)))
        before = join_parent(resolved, file, console, should_stop)
        config = _as_before(resolved, config, before, number)
    make_aggregator(config.aggregate, config.workers)  # rejected before anything is started
    check_nodes(config, None)
    count = config.optimizer_nodes
    state = state_directory(config, STATE_DIRECTORY)
    own_state = None if state is None else directory_of_node(state, number, count)
    alone = replace(config, optimizer_nodes=1, replicas=1, transport="tcp")
    # Whoever joins by a URL that was written by hand need not know of extents.
    sizes = decide_sizes(alone, own_state, auto_extent=False)
    who = "node" if count == 1 else f"node {number}"
    say_start(console, _text(who, config, own_state, sizes, directory), sizes)
    for line in sizes.lines:
        console.detail(line)
    if state is not None and count > 1:
        state.parent.mkdir(parents=True, exist_ok=True)
        state.mkdir(mode=0o700, exist_ok=True)
    job = (config.job or new_job()) if before is None else before.job
    shared = job_spec(  # separate roles talk over tcp: there are no arenas
        config, job=job, chunk_bytes=sizes.chunk_bytes, extent_chunks=sizes.extent_chunks
    )
    spec = node_spec(
        config,
        directory,
        shared,
        NodeEnds(listen=config.bind or loopback.endpoint(), advertise=config.advertise),
        memory_budget_bytes=sizes.memory_budget_bytes,
        state=own_state,
        groups=() if config.tree is None else tree_of(config).groups,
        number=number,
        key_name=config.key_name,
    )
    endpoint = supervisor.add_role(node_role(number), spec)
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


def _text(
    who: str, config: RunConfig, state: Path | None, sizes: Sizes, directory: RunDirectory
) -> str:
    return (
        f"luwu: {who} for {workers_text(config.workers)}; {state_text(config, state)}; "
        f"memory {format_bytes(sizes.memory_budget_bytes)}; {log_text(directory)}"
    )


def _as_before(
    resolved: Resolved, config: RunConfig, before: Connection, number: int
) -> RunConfig:  # fmt: skip
    """The settings of the nodes before this one, which hold for it too. Raises ConfigError."""
    count = before.optimizer_nodes
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
    return replace(
        config, workers=before.world_size, optimizer_nodes=count, chunk=before.chunk_bytes,
        extent=before.extent_bytes, replicas=before.replicas,
    )  # fmt: skip
