"""A history with everything in it, as a pure function of its seed."""

from __future__ import annotations

from dataclasses import replace

from luwu.base.seeds import derive
from luwu.base.tree import Tree
from switch_emu.switch.core.actions import SwitchLimits
from tests.simulate.cluster import Cluster
from tests.simulate.job import Job, make_layout
from tests.simulate.world import Faults

ROUGH = Faults(drop_ratio=0.1, repeat_ratio=0.1, delay_ns_max=30_000_000)


def chaotic_job(seed: int, slot_count: int | None = None) -> Job:
    """A job whose shape follows from the seed; with so many slots, in protocol fidelity."""
    return Job(
        make_layout(units=2 + seed % 3, frozen=seed % 2 == 0, optimizer_nodes=1 + seed // 4 % 3),
        world_size=1 + seed % 4,
        steps=5,
        update="at_step" if seed % 3 == 0 else "streaming",
        backwards=2 if seed % 6 == 0 else 1,
        poison_step=2 if seed % 5 == 0 else None,
        pulls_ahead=seed % 3 == 1,
        keeps=seed % 2 == 1,
        absent_unit=1 if seed % 7 == 0 else None,
        switch_limits=SwitchLimits(
            slot_bytes_max=150_000 if seed % 4 == 0 else 10_000_000,
            copies_bytes_max=50_000 if seed % 5 == 1 else 10_000_000,
            push_window_bytes=60_000,
        ),
        slot_count=slot_count,
    )


def run_chaos(seed: int, slot_count: int | None = None, *, switches: Tree | None = None) -> Cluster:
    """One history, to its end; any failure is an exception, and the seed replays it."""
    job = chaotic_job(seed, slot_count)
    if switches is not None:
        job = replace(job, switches=switches, world_size=switches.workers)
    cluster = Cluster(seed, job, ROUGH)
    start_chaos(cluster, seed)
    cluster.run()
    return cluster


def start_chaos(cluster: Cluster, seed: int) -> None:
    """Plan six interruptions within the first virtual seconds."""
    ranks = cluster.job.world_size
    names = [place.name for place in cluster.job.tree]
    for count in range(6):
        delay_ns = derive(seed, "when", count) % (3 * 10**9)
        rank = derive(seed, "rank", count) % ranks
        name = names[derive(seed, "switch", count) % len(names)]
        node = derive(seed, "node", count) % len(cluster.nodes)
        interruptions = (
            lambda name=name: cluster.restart_switch(name),
            lambda node=node: cluster.restart_node(node),
            lambda name=name: cluster.reconnect_switch(name),
            lambda rank=rank: cluster.reconnect(rank),
            lambda rank=rank: cluster.cancel(rank),
        )
        what = interruptions[derive(seed, "what", count) % len(interruptions)]
        cluster.world.at(delay_ns, what)
