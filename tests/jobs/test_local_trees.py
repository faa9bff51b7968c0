"""Trees of switches in one process: real shells, transports and store, and the bits of a loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from switch_emu.switch.core.actions import SwitchLimits
from tests.helpers.local_job import KIB, LARGE, Job, Worker, check, cluster_for, make_layout
from tests.simulate.test_trees import TREES

FOUR = TREES["ranks in turn"]


def job_of(dtype: str = "float32", update: str = "streaming") -> Job:
    return Job(layout=make_layout(wire_dtype=dtype), world_size=4, update=update, tree=FOUR)


@pytest.mark.feature("trees of switches")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bits_of_a_tree(dtype: str, tmp_path: Path) -> None:
    """I3, I4. Goal: the bits of a plain loop in the order of the tree; sums travel as float32.
    Method: two leaves with every second rank, so the order of the tree is not that of the ranks."""
    job = job_of(dtype)
    with cluster_for(job, tmp_path) as cluster:
        check(cluster, job, cluster.run(Worker(job)))
        one = sum(4 * chunk.elems for chunk in job.layout.chunks if chunk.trainable)
        for switch in cluster.switches.values():
            assert switch.network_bytes()["pushed_to_parent"] == job.steps * one


@pytest.mark.parametrize("update", ["streaming", "at_step"])
def test_leaves_without_slots(update: str, tmp_path: Path) -> None:
    """I3, S5. Goal: the node adds raw contributions in the order of the tree, read back from the
    spill file. Method: no switch has a slot."""
    job = job_of(update=update)
    limits = SwitchLimits(slot_bytes_max=0)
    state = tmp_path / "state"
    with cluster_for(
        job, tmp_path, switch_limits=limits, memory_budget_bytes=job.least_bytes, state=state
    ) as cluster:
        check(cluster, job, cluster.run(Worker(job)))
        chunks = sum(chunk.trainable for chunk in job.layout.chunks)
        assert sum(s.core.raw_up.count for s in cluster.switches.values()) == 8 * chunks * job.steps


def test_a_budget_counts_the_arrays_of_the_tree(tmp_path: Path) -> None:
    """I5. Goal: what the node needs to add in the order of a tree is part of its plan."""
    job = job_of()
    with cluster_for(job, tmp_path) as cluster:
        tree, flat = cluster.spec.plan(), replace(cluster.spec, groups=()).plan()
        assert tree.budget_bytes == flat.budget_bytes == LARGE
        assert tree.pipeline_bytes - flat.pipeline_bytes == 16 * KIB
