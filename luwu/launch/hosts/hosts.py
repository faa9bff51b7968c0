"""The processes of a run on each of its hosts (`luwu compare --hosts H --link RATE`).

    workers     in the order of their ranks, as many on each host as on the others, or one more
    switches    one for the workers of one host: there; all others, and the root: in the centre
    node        on a host of its own

Where hosts have several workers and no tree is given, each host has a leaf switch that sums its
workers over shared memory. Between hosts all goes over tcp, in every arm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError
from luwu.base.tree import NODE, Place, Tree, leaves_per_group, one_switch, ranks_of, read_tree
from luwu.launch.hosts.namespaces import (
    CENTRE,
    INTERFACE,
    NODE_HOST,
    LinkBytes,
    Namespaces,
    check_namespaces,
)
from luwu.launch.hosts.network import host_link_rate
from luwu.launch.hosts.nodes import is_node

MASTER_PORT: Final = 29500
"""Port of torchrun's rendezvous on host-0; its namespace has no other process."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The host of each process."""

    groups: tuple[tuple[int, ...], ...]
    """Ranks of each host."""
    tree: Tree

    @property
    def hosts_count(self) -> int:
        """Hosts with workers."""
        return len(self.groups)

    def where(self, process: str) -> str:
        """The namespace of a node or of a switch; all nodes are on one host."""
        if is_node(process):
            return NODE_HOST
        place = next(place for place in self.tree if place.process == process)
        return self.where_switch(place)

    def where_switch(self, place: Place) -> str:
        """Its host, if all its workers are there; else the centre."""
        if place.parent != NODE:
            ranks = set(ranks_of(self.tree.ranks(place)))
            for index, group in enumerate(self.groups):
                if ranks <= set(group):
                    return f"host-{index}"
        return CENTRE


class Hosts:
    """The hosts of one arm, made and ready."""

    def __init__(self, plan: Plan, namespaces: Namespaces) -> None:
        self.plan, self._namespaces = plan, namespaces
        self.environ = {"GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": INTERFACE}
        """For workers."""
        self._before = namespaces.counts()

    def enter_role(self, process: str) -> list[str]:
        """The start of the command line of the node or a switch."""
        return self._namespaces.enter(self.plan.where(process))

    def enter_host(self, index: int) -> list[str]:
        """The start of a command line on a host."""
        return self._namespaces.enter(f"host-{index}")

    def listen_at(self, process: str) -> str:
        """The endpoint of a role for processes of other hosts."""
        return f"tcp://{self._namespaces.address(self.plan.where(process))}:0"

    def torchrun_flags(self, index: int) -> list[str]:
        """The flags by which the torchrun of a host finds the others."""
        return [
            "--nnodes", str(self.plan.hosts_count), "--node-rank", str(index),
            "--master-addr", self._namespaces.address("host-0"),
            "--master-port", str(MASTER_PORT),
            "--local-addr", self._namespaces.address(f"host-{index}"),
            "--nproc-per-node", str(len(self.plan.groups[index])),
        ]  # fmt: skip

    def start_counting(self) -> None:
        """Start counting: bytes on the links until now are left out."""
        self._before = self._namespaces.counts()

    def counted(self) -> dict[str, LinkBytes]:
        """Bytes on each link since then, as the kernel counts."""
        return {
            where: count.since(self._before[where])
            for where, count in self._namespaces.counts().items()
        }


def plan_hosts(config: RunConfig) -> Plan | None:
    """The host of each process; None without --hosts. Raises ConfigError."""
    if config.hosts is None:
        return None
    host_link_rate(config)
    hosts, workers = config.hosts, config.workers
    if hosts > workers:
        raise ConfigError(
            f"hosts: {hosts} hosts for {workers} workers would leave some empty; give at most "
            f"--hosts {workers}, or --workers {hosts}"
        )
    if config.transport not in ("auto", "tcp"):
        raise ConfigError(
            f"transport: {config.transport} does not lead from host to host; with --hosts all talk "
            "over tcp, and a leaf switch with its workers over shared memory: leave --transport out"
        )
    if config.no_switch:
        raise ConfigError("no_switch: the centre of the hosts is a switch; leave it out")
    groups = spread(workers, hosts)
    if config.tree is not None:
        tree = read_tree(config.tree, workers=workers)
    else:
        tree = one_switch(workers) if hosts == workers else leaves_per_group(groups)
    check_namespaces()
    return Plan(groups, tree)


def spread(workers: int, hosts: int) -> tuple[tuple[int, ...], ...]:
    """Ranks of each host, in order: as many on each as on the others, or one more."""
    ends = [workers * index // hosts for index in range(hosts + 1)]
    return tuple(tuple(range(first, last)) for first, last in pairwise(ends))


def make_hosts(plan: Plan, rate: float | None, *, log: Path, run_id: str) -> Namespaces:
    """The namespaces of a plan. Raises ConfigError."""
    return Namespaces(plan.hosts_count, rate, log=log, run_id=run_id)


def link_documents(
    hosts: Hosts, rate_bytes_per_s: float | None, *, steps_count: int,
    switches: Sequence[dict[str, Any]], workers: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:  # fmt: skip
    """Bytes on each link, by the kernel's count and, where this program moves them, by its own.

    Ours is payload; the kernel's has all headers, acknowledgements and torchrun's own messages.
    """
    ours = _our_bytes(hosts.plan, switches, workers) if switches else {}
    found = []
    for where, kernel in hosts.counted().items():
        busiest = max(kernel.up, kernel.down) / max(1, steps_count)
        found.append({
            "link": where,
            "rate_bytes_per_s": rate_bytes_per_s,
            "up_bytes": ours.get(where, (None, None))[0],
            "down_bytes": ours.get(where, (None, None))[1],
            "kernel": asdict(kernel),
            "bound_step_seconds": None if rate_bytes_per_s is None else busiest / rate_bytes_per_s,
        })  # fmt: skip
    return found


def links_bound(links: Sequence[dict[str, Any]]) -> float | None:
    """Seconds that a step takes at least: the largest bytes / rate of links and directions."""
    known = [each["bound_step_seconds"] for each in links]
    return max((each for each in known if each is not None), default=None)


def _our_bytes(
    plan: Plan, switches: Sequence[dict[str, Any]], workers: Sequence[dict[str, Any]]
) -> dict[str, tuple[int, int]]:
    """(up, down) of each link: from what passed through the switches, and the workers' own."""
    by_name = {each["name"]: each["network_bytes"] for each in switches}
    root = by_name[plan.tree.root.name]
    up = {NODE_HOST: root["from_parent"]}
    down = {NODE_HOST: root["to_parent"]}
    first_weights = root["to_parent"] - root["pushed_to_parent"]
    for place in plan.tree:
        where = plan.where_switch(place)
        parent = (
            CENTRE if place.parent == NODE else plan.where_switch(plan.tree.named(place.parent))
        )
        if where not in (CENTRE, parent):
            up[where] = up.get(where, 0) + by_name[place.name]["to_parent"]
            down[where] = down.get(where, 0) + by_name[place.name]["from_parent"]
        if where == CENTRE:
            for rank in place.workers:
                host = next(f"host-{i}" for i, g in enumerate(plan.groups) if rank in g)
                said = workers[rank].get("network_bytes") or {"push": math.nan, "pull": math.nan}
                loaded = first_weights if rank == 0 else 0
                up[host] = up.get(host, 0) + said["push"] + loaded
                down[host] = down.get(host, 0) + said["pull"]
    return {where: (up[where], down[where]) for where in up}
