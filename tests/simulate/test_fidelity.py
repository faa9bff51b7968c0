"""Clusters whose switch runs in protocol fidelity: few slots, two copies, results that free sends.

The oracles are those of `test_clusters.py`: I1, I2, I3 by seeds, whatever the network does.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.fixed_slots import FixedSlotPool
from tests.simulate.cluster import Cluster
from tests.simulate.job import Job, make_layout
from tests.simulate.seeds import seeds
from tests.simulate.world import ROUGH, Faults

WIDE = SwitchLimits()
"""Its window is that of the slots."""


def pool_of(cluster: Cluster) -> FixedSlotPool:
    pool = cluster.switch.core.pool
    assert isinstance(pool, FixedSlotPool)
    return pool


@pytest.mark.parametrize("slot_count", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("update", ["streaming", "at_step"])
def test_no_extent_is_raw_where_nothing_is_lost(update: str, slot_count: int) -> None:
    """F2, I3. Goal: where nothing is lost or overtaken, the window of pushes is the
    self-clocked window: however few slots there are, every extent of every step finds its own free,
    and each is summed once in the switch."""
    job = Job(
        make_layout(units=6), world_size=3, update=update, slot_count=slot_count, switch_limits=WIDE
    )
    cluster = Cluster(slot_count, job, Faults(is_ordered=True))
    cluster.run()
    pushed = sum(chunk.trainable for chunk in job.layout.chunks) * job.steps
    assert cluster.switch.core.raw_up.count == 0
    assert pool_of(cluster).opened_count == pushed
    assert 1 <= pool_of(cluster).slots_used_peak <= slot_count


@pytest.mark.feature("the slots of a programmable switch")
@pytest.mark.parametrize("slot_count", [1, 4])
@pytest.mark.parametrize("seed", seeds(6, quick=2))
def test_fidelities_end_with_one_digest(seed: int, slot_count: int) -> None:
    """I3. Goal: what was summed in slots, at the node, or partly here and there has one digest.
    Method: the same job on a rough network, functional and protocol; some of it went raw."""
    update = ("streaming", "at_step")[seed % 2]
    job = Job(make_layout(), world_size=3, update=update, switch_limits=WIDE)
    functional = Cluster(seed, job, ROUGH)
    protocol = Cluster(seed, replace(job, slot_count=slot_count), ROUGH)
    assert functional.run() == protocol.run()
    assert functional.switch.core.raw_up.count == 0
    assert protocol.switch.core.raw_up.count > 0 or slot_count > 1
    assert pool_of(protocol).copies_used_peak <= 2 * slot_count
