"""Pages that several optimizer nodes hold: each receives the same sums, and is what the others are.

Every `Cluster.run` checks each node's pages against the plain loop, and that no disk decides alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.simulate.chaos import ROUGH
from tests.simulate.cluster import Cluster
from tests.simulate.job import Job, make_layout
from tests.simulate.seeds import seeds
from tests.simulate.world import Faults

ORDERED = Faults(is_ordered=True)
UPDATES = ["streaming", "at_step"]
SHAPES = [(2, 2), (3, 2), (3, 3)]
"""(nodes, replicas)"""


@pytest.mark.parametrize("update", UPDATES)
def test_norm_and_weights_do_not_depend_on_replicas(update: str) -> None:
    """I3. Goal: whatever the number of owners, the same weights and norms, bit for bit."""
    norms = []
    for nodes, replicas in [(1, 1), *SHAPES]:
        job = Job(make_layout(node_count=nodes), replicas=replicas, update=update)
        cluster = Cluster(0, job, ORDERED)
        cluster.run_to_the_end()
        norms.append([cluster.workers[0].decided[step].grad_norm for step in range(4)])
    assert all(each == norms[0] for each in norms)
    assert all(norm > 0 for norm in norms[0])


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize(("nodes", "replicas"), SHAPES)
def test_rough_network(seed: int, nodes: int, replicas: int) -> None:
    """I1, I2, I3. Goal: loss, repetition and reordering change no bit of any replica."""
    job = Job(
        make_layout(node_count=nodes),
        replicas=replicas,
        update=UPDATES[seed % 2],
        keeps=seed % 3 == 0,
    )
    Cluster(seed, job, ROUGH).run()


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize("number", [0, 1])
def test_a_node_is_killed(seed: int, number: int) -> None:
    """I1, I2, I3. Goal: a node that is started again goes on as a replica of the others."""
    job = Job(
        make_layout(node_count=2), replicas=2, update=UPDATES[seed % 2], prepare_ns=seed % 3 * 10**8
    )
    cluster = Cluster(seed, job, ROUGH)
    for count in range(3):
        at_ns = count * 10**9 + cluster.world.random.randrange(10**9)
        cluster.world.at(at_ns, lambda: cluster.restart_node(number))
    cluster.run()


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("number", [0, 1])
def test_a_replica_that_differs_is_found(update: str, number: int) -> None:
    """I2. Goal: a page that is written with one wrong bit is found before its step is decided; the
    step before it stays. Method: node `number` flips a bit in its copy of one page of step 2."""
    job = Job(make_layout(node_count=2), replicas=2, update=update)
    cluster = Cluster(0, job, ORDERED)
    disk, write = cluster.disks[number], cluster.disks[number].write

    def with_a_wrong_bit(chunk: int, version: int, *rest: Any) -> None:
        attempt, weights, momentum = rest
        if (chunk, version) == (3, 3):
            weights = weights.copy()
            weights.view(np.uint32)[7] ^= 1
        write(chunk, version, attempt, weights, momentum)

    disk.write = with_a_wrong_bit  # type: ignore[method-assign]
    cluster.world.run(lambda: bool(cluster.nodes[0].given_up), limit_ns=600 * 10**9)
    assert cluster.nodes[0].given_up.startswith(
        "step 2: pages of stripe 1 differ between nodes 0 and 1"
    )
    assert [each.version for each in cluster.disks] == [2, 2]
