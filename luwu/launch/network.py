"""The network of a run, from its configuration: its transport, the tree of its switches, emulated
links and disk, and checks of these."""

from __future__ import annotations

from typing import Final

from luwu.base.config import KEYS, RunConfig
from luwu.base.errors import ConfigError
from luwu.base.limits import ARENA_BYTES_MIN
from luwu.base.links import LinkPair, Links
from luwu.base.tree import Tree, one_switch, read_tree, tree_of_hosts
from luwu.transport.arena import check_arena

_CHUNK_LINK_S: Final = 0.0125
_CHUNK_LINK_BYTES_MIN: Final = 64 * 1024
"""Four workers and a model of 14 MB on links of the kernel's, milliseconds of a step by chunk:
1 Gbit/s: 64 KiB 679, 256 KiB 332, 512 KiB 306, 1 MiB 295, 16 MiB 410; 0.1 Gbit/s: 64 KiB 2188,
128 KiB 2158, 256 KiB 2181, 16 MiB 3500. Below some size messages bind, and not bytes."""

_BETWEEN_HOSTS: Final = 125e6
"""Bytes per second of links that are not ours to know; faster ones lose little by small chunks."""


def links_of(config: RunConfig) -> Links:
    """The emulated links, dilated. Raises ConfigError for what would have no effect."""
    links = (config.link or Links()).dilated(config.dilation)
    if config.tree is None and "switch" in links.named:
        raise ConfigError(
            "link: no switch is above another one here, so there is no link of a switch; set "
            "worker=... for the links below the switch and node=... for the link above it"
        )
    if config.no_switch and "node" in links.named:
        raise ConfigError(
            "link: with --no-switch the node has no link of its own; say worker=..., or leave "
            "--no-switch out"
        )
    slows_something = links.has_rate_or_delay or config.compute_ms or config.disk_rate
    if config.dilation != 1 and not slows_something:
        raise ConfigError(
            "dilation: nothing is emulated that it could slow down; give a --link with a rate or "
            "delay, --disk-rate or --compute-ms too"
        )
    if config.disk_rate is not None and config.durability == "none" and config.state is None:
        raise ConfigError(
            "disk_rate: with --durability none the state is in RAM, and no page passes a disk; "
            "name a directory with --state, or leave --disk-rate out"
        )
    return links


def chunk_for_links(config: RunConfig, chunk_bytes: int) -> int:
    """The chunk where messages take their time: halved until the slowest link needs an instant.

    A chunk crosses each hop whole, worker to switch to node and back, so a large one keeps all
    links but one waiting. Dilation slows everything alike, so it does not count.
    """
    specs = [spec for _, _, spec in links_of(config).directions()]
    rates = [spec.rate_bytes_per_s * config.dilation for spec in specs if spec.rate_bytes_per_s]
    rates += [_BETWEEN_HOSTS] if config.hosts > 1 else []
    if rates:
        most = max(_CHUNK_LINK_BYTES_MIN, min(rates) * _CHUNK_LINK_S)
        while chunk_bytes > most:
            chunk_bytes //= 2
    return chunk_bytes


def node_link(config: RunConfig) -> LinkPair:
    """The link of those who dial the node. Raises ConfigError."""
    links = links_of(config)
    return links.worker if config.no_switch else links.node


def dilated_disk_rate(config: RunConfig) -> float | None:
    """Bytes per second of the emulated disk; None: none is emulated."""
    return None if config.disk_rate is None else config.disk_rate / config.dilation


def dilated_compute_ms(config: RunConfig) -> float | None:
    """Least milliseconds of each unit's compute; None: as long as it takes."""
    return None if config.compute_ms is None else config.compute_ms * config.dilation


def can_share() -> bool:
    """True if this machine allows shared memory at all."""
    try:
        check_arena(ARENA_BYTES_MIN)
    except ConfigError:
        return False
    return True


def chosen_transport(config: RunConfig) -> str:
    """`tcp`, `ipc` or `shm`: as asked; else shared memory on one host, if it can be had."""
    if config.bind is not None or config.hosts > 1 or config.transport == "tcp":
        return "tcp"
    if config.transport != "auto":
        return config.transport
    return "shm" if can_share() else "ipc"


def tree_of(config: RunConfig) -> Tree:
    """The switches of a job. Raises ConfigError."""
    if config.hosts > 1:
        return _tree_of_hosts(config)
    if config.tree is None:
        return one_switch(config.workers)
    if config.no_switch:
        raise ConfigError("tree: there is no switch with --no-switch; leave one of them out")
    tree = read_tree(config.tree, workers=config.workers)
    for place in tree:
        links_of(config).below(tree.roles_below(place), f"link: [{place.name}] of {config.tree}")
    return tree


def _tree_of_hosts(config: RunConfig) -> Tree:
    for name in ("tree", "no_switch", "workers_max", "link", "fidelity", "slots"):
        if getattr(config, name) != KEYS[name].default:
            raise ConfigError(
                f"{name}: with --hosts {config.hosts} there is a switch on each host, for ranks of "
                f"its own, and the links are those of the hosts; leave {KEYS[name].flag} or "
                "--hosts out"
            )
    return tree_of_hosts(config.workers, config.hosts)


def groups_of(tree: Tree) -> tuple[int, ...]:
    """The sums of a tree, where there is more than one."""
    return tree.groups if len(tree) > 1 else ()
