"""Several optimizer nodes of one job: their roles, their directories, and what they came to.

    roles        node, node-1, node-2, ...; node 0 keeps the plain name
    --state DIR  DIR for one node; DIR/node-0, DIR/node-1, ... for several
    results      results/node-0.json, ... of each; `fold_nodes` makes results/node.json of them

The memory budget is that of all nodes together, divided evenly: they share one host.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from luwu.base.config import KEYS, RunConfig
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.json_file import read_json, write_json
from luwu.launch.processes.run_directory import RunDirectory
from luwu.layout import check_replicas, owners_of
from switch_emu.store.striped import StripedPages, node_count_of

OF_THE_JOB: Final = ("E500", "E508", "E509")
"""Errors that are not of one node alone."""


def node_role(number: int) -> str:
    """The name of a node's process."""
    return "node" if number == 0 else f"node-{number}"


def node_result(number: int, count: int) -> str:
    """The file of a node's account of the run."""
    return "node.json" if count == 1 else f"node-{number}.json"


def is_node(process: str) -> bool:
    """True if a process is an optimizer node."""
    return kind_of(process) == "node"


def number_of(process: str) -> int:
    """The number of a node, of its process's name."""
    return int(process.partition("-")[2] or 0)


class Replicas:
    """The nodes of a run that are lost, where others that we started hold their pages."""

    def __init__(self, optimizer_nodes: int, replicas: int) -> None:
        self._owners = [owners_of(s, optimizer_nodes, replicas) for s in range(optimizer_nodes)]
        self.lost: set[int] = set()

    def is_lost(self, process: str) -> bool:
        """True if a process is a node that the run goes on without."""
        return is_node(process) and number_of(process) in self.lost

    def lose(self, process: str, code: str | None) -> bool:
        """A node has ended for good, with an error code; True if the run can go on without it."""
        if not is_node(process) or code in OF_THE_JOB or number_of(process) >= len(self._owners):
            return False
        lost = self.lost | {number_of(process)}
        if any(lost.issuperset(owners) for owners in self._owners):
            return False
        self.lost = lost
        return True


def kind_of(process: str) -> str:
    """`switch` of `switch-host-a`: a machine of the network has its kind before its name."""
    return process.partition("-")[0]


def check_nodes(config: RunConfig, state: Path | None) -> None:
    """Check that so many optimizer nodes can serve this job. Raises ConfigError."""
    count = config.optimizer_nodes
    check_replicas(count, config.replicas)
    for name in ("drop_node_after", "fill_rate"):
        if config.replicas == 1 and getattr(config, name) != KEYS[name].default:
            raise ConfigError(
                f"{name}: the job cannot go on without an optimizer node, as no other holds its "
                f"pages; give --optimizer-nodes 2 --replicas 2 too, or leave {KEYS[name].flag} out"
            )
    found = None if state is None else node_count_of(state)
    if found is not None and found != count:
        raise ConfigError(
            f"optimizer_nodes: {state} is the state of {found}, asked for {count}; give "
            f"--optimizer-nodes {found}, or name another directory with --state",
            code="E203",
        )
    if count == 1:
        return
    if config.no_switch:
        raise ConfigError(
            f"optimizer_nodes: {count} nodes need a switch before them; leave --no-switch out"
        )
    if config.state is None and config.durability == "none":
        raise ConfigError(
            f"optimizer_nodes: {count} nodes keep their state on disk; give --state, or another "
            "--durability than none"
        )


def fold_nodes(run: RunDirectory, state: Path | None, count: int) -> None:
    """Make results/node.json of what each of several nodes wrote, and of their pages.

    All nodes have ended. Raises LuwuError if one wrote nothing; StateError.
    """
    if count == 1:
        return
    assert state is not None
    from luwu.checkpoint.source import description_of
    from switch_emu.node.page_updates import redo_of
    from switch_emu.node.pages import weights_digest

    with StripedPages(state, count, redo_of) as pages:
        description = description_of(pages.configs, state)
        pages.lay_out(description.layout)
        digest = weights_digest(pages, description.layout)
        nodes = [_summary(run, number, count) for number in sorted(pages.stores)]
    first = nodes[0]
    folded = {
        **{key: first[key] for key in ("schema", "steps", "chunk_bytes")},
        "weights_digest": digest,
        **{
            key: sum(node[key] for node in nodes)
            for key in (
                "node_state_bytes", "disk_space_bytes", "memory_budget_bytes", "resident_bytes",
                "spilled_count",
            )
        },
        **{
            key: {name: sum(node[key][name] for node in nodes) for name in first[key]}
            for key in ("disk_bytes", "spill_bytes", "network_bytes")
        },
        "links": [row for node in nodes for row in node.get("links", [])],
        "nodes": nodes,
    }  # fmt: skip
    write_json(run.result("node.json"), folded)


def total_of_nodes(by_role: Mapping[str, int]) -> int | None:
    """The sum over the nodes of what was measured by process; None if there is none."""
    found = [value for role, value in by_role.items() if is_node(role)]
    return sum(found) if found else None


def _summary(run: RunDirectory, number: int, count: int) -> dict[str, Any]:
    path = run.result(node_result(number, count))
    found = read_json(path)
    if found is None:
        log = run.log(node_role(number))
        raise LuwuError(f"optimizer node {number} ended well but wrote no {path}; see {log}")
    return found
