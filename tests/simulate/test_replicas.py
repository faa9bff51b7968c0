"""Pages that several optimizer nodes hold: each receives the same sums, and is what the others are.

The oracles check each node's pages against the plain loop, and that no disk decides alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.simulate.cluster import Cluster
from tests.simulate.job import SMALL_SWITCH, Job, make_layout
from tests.simulate.seeds import seeds
from tests.simulate.world import ROUGH, Faults

ORDERED = Faults(is_ordered=True)
UPDATES = ["streaming", "at_step"]
SHAPES = [(2, 2), (3, 2), (3, 3)]
"""(nodes, replicas)"""


@pytest.mark.parametrize("update", UPDATES)
def test_norm_and_weights_do_not_depend_on_nodes_and_replicas(update: str) -> None:
    """I3. Goal: whatever the number of nodes, and of the owners of a page, the same weights and
    norms, bit for bit."""
    norms = []
    for nodes, replicas in [(1, 1), (2, 1), (3, 1), (4, 1), *SHAPES]:
        job = Job(make_layout(optimizer_nodes=nodes), replicas=replicas, update=update)
        cluster = Cluster(0, job, ORDERED)
        cluster.run_to_the_end()
        norms.append([cluster.workers[0].decided[step].norms for step in range(4)])
    assert all(each == norms[0] for each in norms)
    assert all(norm > 0 for of_step in norms[0] for norm in of_step)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("number", [0, 1])
def test_a_replica_that_differs_is_found(update: str, number: int) -> None:
    """I2, E7. Goal: a page that is written with one wrong bit is found before its step is decided;
    the step is made again, and if it comes out as before, the job ends; the step before it stays.
    Method: node `number` flips a bit in its copy of one page of step 2, each time."""
    job = Job(make_layout(optimizer_nodes=2), replicas=2, update=update)
    cluster = Cluster(0, job, ORDERED)
    disk, write = cluster.disks[number], cluster.disks[number].write

    def with_a_wrong_bit(chunk: int, version: int, *rest: Any) -> None:
        attempt, weights, momentum, *summed = rest
        if (chunk, version) == (3, 3):
            weights = weights.copy()
            weights.view(np.uint32)[7] ^= 1
        write(chunk, version, attempt, weights, momentum, *summed)

    disk.write = with_a_wrong_bit  # type: ignore[method-assign]
    cluster.world.run(lambda: bool(cluster.switch.ended), limit_ns=600 * 10**9)
    assert cluster.switch.ended is not None
    code, text = cluster.switch.ended
    assert code == "E509"
    assert text.startswith("step 2: pages of stripe 1 differ between nodes 0 and 1")
    assert [each.version for each in cluster.disks] == [2, 2]
    assert cluster.switch.core.outbox.attempt == 2  # it was made twice


def losing(nodes: int, replicas: int, seed: int, **options: Any) -> Job:
    """A job that goes on without a node that is gone for 0.3 virtual seconds, and fills it."""
    limits = replace(SMALL_SWITCH, drop_node_after_ns=300_000_000, fill_rate_bytes_per_s=1e6)
    return Job(
        make_layout(optimizer_nodes=nodes), replicas=replicas, update=UPDATES[seed % 2],
        keeps=seed % 3 == 0, switch_limits=limits, **options,
    )  # fmt: skip


@pytest.mark.parametrize("seed", seeds(10))
@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize(("nodes", "replicas"), SHAPES)
def test_a_node_is_lost_with_its_directory(
    nodes: int, replicas: int, comes_back: bool, seed: int
) -> None:
    """I1, I3, E4, E5. Goal: the job goes on without it, and ends with the bits of a quiet run.
    Method: kill a node at any time and delete what lies on its disk; another is started on an
    empty one, or none."""
    cluster = Cluster(seed, losing(nodes, replicas, seed), ROUGH if seed % 2 else ORDERED)
    number = cluster.world.random.randrange(nodes)
    at_ns = 10**8 + cluster.world.random.randrange(2 * 10**9 if seed % 2 else 2 * 10**8)

    def lose() -> None:
        if all(disk.version is not None for disk in cluster.disks):
            cluster.lose_node(number, comes_back=comes_back)

    cluster.world.at(at_ns, lose)
    cluster.run()


@pytest.mark.parametrize("seed", seeds(12))
@pytest.mark.parametrize(("nodes", "replicas"), SHAPES)
def test_a_node_that_was_stopped_is_filled(nodes: int, replicas: int, seed: int) -> None:
    """I3, E4, E8. Goal: a node whose process goes on after the job has left it out is emptied and
    filled, once all that was under way to its disk, or from it, has ended.
    Method: its disk is slow before and after."""
    options = {
        1: {"poison_step": seed % 7}, 2: {"skip_step": seed % 7}, 3: {"pulls_ahead": True},
        4: {"aggregate": "shared-exponent"},
    }.get(seed % 5, {})  # fmt: skip
    faults = ROUGH if seed % 4 == 0 else ORDERED
    cluster = Cluster(seed, losing(nodes, replicas, seed, steps=10, **options), faults)
    world, number = cluster.world, cluster.world.random.randrange(nodes)
    node, switch = cluster.nodes[number], cluster.switch

    def stop() -> None:
        if any(disk.version is None for disk in cluster.disks):
            world.at(10**8, stop)
            return
        node.disk_stalls_until_ns = world.now_ns + 10**9
        world.at(2 * 10**7, node.stall)
        world.at(2 * 10**7, lambda: switch.enter(lambda: switch.parent_is(number, there=False)))
        world.at(33 * 10**7 + world.random.randrange(3 * 10**8), go_on)

    def go_on() -> None:
        node.disk_stalls_until_ns = world.now_ns + 2 * 10**8
        node.go_on()
        switch.enter(lambda: switch.parent_is(number, there=True))

    world.at(10**7 + world.random.randrange(10**9 if faults is ROUGH else 3 * 10**8), stop)
    cluster.run()
    assert cluster.disks[number].filled_at is not None
    assert not cluster.disks[number].is_partial


@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.parametrize(("nodes", "replicas"), SHAPES)
def test_a_node_that_stops_as_it_is_filled_holds_nobody_up(
    nodes: int, replicas: int, seed: int
) -> None:
    """I3, E8. Goal: a node that does nothing while it is filled, though its connection stays, is
    given up after its patience, and filled when it goes on. Method: it was lost with its directory;
    its successor is stopped as soon as it is being filled."""
    cluster = Cluster(seed, losing(nodes, replicas, seed, steps=12), ORDERED)
    world, number, stopped = cluster.world, seed % nodes, []

    def is_filling() -> bool:
        lead = cluster.switch.core.lead
        return lead is not None and lead.at.now.filled > 0

    def stop() -> None:
        if not is_filling():
            world.at(5 * 10**6, stop)
            return
        stopped.append(cluster.nodes[number])
        stopped[0].stall()
        world.at(10**9, go_on)

    def go_on() -> None:
        assert not is_filling()
        assert all(each.finished for each in cluster.workers) or cluster.switch.core.is_joined
        stopped[0].go_on()

    world.at(10**8, lambda: cluster.lose_node(number, comes_back=True))
    world.at(10**8, stop)
    cluster.run()
    assert stopped
