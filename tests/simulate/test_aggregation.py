"""Integer aggregation in whole clusters: histories of faults change nothing of the bits."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from luwu.base.tree import Tree
from switch_emu.switch.core.actions import SwitchLimits
from tests.simulate.chaos import ROUGH, chaotic_job, start_chaos
from tests.simulate.cluster import Cluster
from tests.simulate.job import Job, make_layout
from tests.simulate.seeds import seeds
from tests.simulate.trees import TREES, every_tree
from tests.simulate.world import Faults

BORDERLINE = "borderline"
SPECS = ("shared-exponent", "fixed-scale:1048576.0", BORDERLINE)
_BORDER = {1: 6.2e9, 2: 8.2e8, 3: 3.1e8, 4: 1.61e8, 6: 6.6e7}
"""World size -> a scale at which some chunks of the job fit, and some do not."""


def with_spec(job: Job, spec: str) -> Job:
    """The job with an aggregator, borderline or as named."""
    if spec == BORDERLINE:
        spec = f"fixed-scale:{_BORDER[job.world_size]!r}"
    return replace(job, aggregate=spec)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("update", ["streaming", "at_step"])
def test_calm_network(spec: str, update: str) -> None:
    """I1, I3. Goal: on a faultless network the weights are those of the same arithmetic in one
    loop."""
    Cluster(0, with_spec(Job(make_layout(), update=update), spec), Faults()).run()


@pytest.mark.parametrize("seed", seeds(12))
@pytest.mark.parametrize("spec", SPECS)
def test_everything_at_once(seed: int, spec: str) -> None:
    """I1, I2, I3. Goal: whatever is lost, repeated, restarted or given up, the weights are those
    of the same arithmetic in one loop."""
    cluster = Cluster(seed, with_spec(chaotic_job(seed), spec), ROUGH)
    start_chaos(cluster, seed)
    cluster.run()


@pytest.mark.parametrize("seed", seeds(4, quick=2))
@pytest.mark.parametrize("spec", SPECS)
def test_no_slots_at_all(seed: int, spec: str) -> None:
    """I3. Goal: integers that meet at the node and not in a slot have the same sum."""
    limits = SwitchLimits(slot_bytes_max=60_000 * (seed % 2), push_window_bytes=50_000)
    update = "streaming" if seed % 2 else "at_step"
    job = Job(make_layout(), switch_limits=limits, update=update)
    cluster = Cluster(seed, with_spec(job, spec), ROUGH)
    cluster.run()
    assert cluster.switch.core.raw_count > 0


@pytest.mark.parametrize("seed", seeds(4, quick=2))
@pytest.mark.parametrize("spec", SPECS)
def test_ranks_push_in_different_orders(seed: int, spec: str) -> None:
    """I5. Goal: ranks that wait for each other's statements do not wait for ever, though what each
    may have under way is one chunk."""
    limits = SwitchLimits(push_window_bytes=1)
    update = "streaming" if seed % 2 else "at_step"
    job = Job(make_layout(), switch_limits=limits, update=update, any_order=True)
    Cluster(seed, with_spec(job, spec), ROUGH).run()


@pytest.mark.parametrize("seed", seeds(4, quick=2))
@pytest.mark.parametrize("spec", SPECS)
def test_protocol_slots(seed: int, spec: str) -> None:
    """I3. Goal: the fixed slots of a programmable switch hold encoded chunks, and the sums are the
    same. Method: enough slots that some chunks find one, so few that some do not."""
    job = replace(chaotic_job(seed), slot_count=1 + seed % 3)
    cluster = Cluster(seed, with_spec(job, spec), ROUGH)
    cluster.run()
    assert cluster.switch.core.counts()["slots_opened_count"] > 0


@every_tree
@pytest.mark.parametrize("seed", seeds(3, quick=1))
@pytest.mark.parametrize("spec", SPECS)
def test_everything_at_once_in_a_tree(seed: int, spec: str, tree: Tree) -> None:
    """I1, I2, I3. Goal: the reference adds in rank order whatever the tree, and so does every tree,
    in one to three nodes, whichever switch or node is killed."""
    job = replace(chaotic_job(seed), switches=tree, world_size=tree.workers)
    cluster = Cluster(seed, with_spec(job, spec), ROUGH)
    start_chaos(cluster, seed)
    cluster.run()


@pytest.mark.feature("aggregation in integers")
@pytest.mark.parametrize("spec", SPECS)
def test_integers_have_one_digest_in_each_fidelity(spec: str) -> None:
    """I3. Goal: one digest for every tree, number of nodes and order of arrival, with slots or
    without. Method: each tree of four workers before one to three nodes, on ordered and rough
    networks, functional or with two slots; trees of float32 differ (`test_trees.py`)."""
    digests = set()
    trees = [None, *(tree for tree in TREES.values() if tree.workers == 4)]
    for number, (tree, node_count) in enumerate(product(trees, (1, 2, 3))):
        job = Job(
            make_layout(node_count=node_count), world_size=4, switches=tree, steps=3,
            slot_count=2 if number % 2 else None,
        )  # fmt: skip
        cluster = Cluster(number, with_spec(job, spec), ROUGH if number % 3 else Faults())
        cluster.run()
        digests.add(cluster.digest())
    assert len(digests) == 1


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_some_fit_and_some_do_not(world_size: int) -> None:
    """Goal: the scale of these tests is one at which both happen, so both are tested."""
    job = with_spec(Job(make_layout(), world_size=world_size), BORDERLINE)
    cluster = Cluster(0, job, Faults())
    cluster.run()
    chunks = sum(chunk.trainable for chunk in cluster.job.layout.chunks)
    assert 0 < cluster.nodes[0].core.overflow_count < chunks * cluster.job.steps
    resent = {worker.core.encodings.resent_count for worker in cluster.workers}
    assert resent == {cluster.nodes[0].core.overflow_count}
