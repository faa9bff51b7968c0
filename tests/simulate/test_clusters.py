"""Whole clusters on a network that loses, repeats, delays and reorders: I1, I2, I3 by seeds.

The oracles look at all of it: the recorded contributors of each step (I1), the state of one decided
step, which no disk of several decides alone (I2, E2), and the bits of the plain loop (I3).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from luwu.wire import messages as wire
from switch_emu.node.core.actions import NodeLimits
from switch_emu.switch.core.actions import SwitchLimits
from tests.simulate.cluster import Cluster
from tests.simulate.job import Job, make_layout
from tests.simulate.seeds import seeds
from tests.simulate.world import ROUGH, Faults

ORDERED = Faults(is_ordered=True)
NEVER_NS = 10**15
"""A patience with which nobody is missed, and nobody waits for a slot."""
every_update = pytest.mark.parametrize("update", ["streaming", "at_step"])


@pytest.mark.parametrize("seed", seeds(30))
@pytest.mark.parametrize("aggregate", ["float32", "shared-exponent"])
def test_no_slots_at_all(seed: int, aggregate: str) -> None:
    """I1, I3. Goal: extents that find no slot are summed at the node, with the same bits."""
    limits = SwitchLimits(
        slot_bytes_max=60_000 * (seed % 2), push_window_bytes=50_000, drop_after_ns=NEVER_NS
    )
    update = "streaming" if seed % 2 else "at_step"
    job = Job(make_layout(), switch_limits=limits, update=update, aggregate=aggregate)
    cluster = Cluster(seed, job, ROUGH)
    cluster.run()
    assert cluster.switch.core.raw_up.count > 0


@pytest.mark.parametrize("seed", seeds(30))
@every_update
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("reason", ["poison_step", "skip_step"])
def test_a_step_is_left_out(seed: int, update: str, nodes: int, reason: str) -> None:
    """I2. Goal: a step with a gradient that is not finite, or that one rank leaves out, is skipped
    on all ranks and nodes, as a whole, also where pages were updated already; its norm is what it
    is."""
    step: dict[str, Any] = {reason: 1}
    cluster = Cluster(seed, Job(make_layout(optimizer_nodes=nodes), update=update, **step), ROUGH)
    cluster.run()
    assert cluster.skipped_steps() == {1}
    for worker in cluster.workers:
        assert np.isfinite(worker.decided[1].norms[0]) == (reason == "skip_step")


@pytest.mark.parametrize("seed", seeds(24, quick=4))
def test_small_windows(seed: int) -> None:
    """I5. Goal: with room for one chunk at a time, and for few or no slots, all still arrives."""
    slot_bytes = (200_000, 60_000, 0)[seed % 3]
    job = Job(
        make_layout(optimizer_nodes=1 + seed % 2),
        switch_limits=SwitchLimits(push_window_bytes=1, slot_bytes_max=slot_bytes),
        node_limits=NodeLimits(updates_max=1, reads_max=1, push_window_bytes=1),
    )
    Cluster(seed, job, ROUGH).run()


def is_skip(message: object) -> bool:
    """True of what says that a step was skipped."""
    return isinstance(message, wire.Verdict | wire.Decided) and not message.applied


@pytest.mark.parametrize("seed", seeds(5, quick=2))
@pytest.mark.parametrize("optimizer_nodes", [1, 2])
@every_update
def test_a_skip_is_lost_with_the_connection(seed: int, optimizer_nodes: int, update: str) -> None:
    """I2. Goal: a switch that hears of the attempt after a skipped step by the answer to its Hello
    goes on as if it had heard of the skip. Method: its connection breaks as the step is skipped,
    and the verdict and the decision of that step are lost; no attempt is given up."""
    layout = make_layout(optimizer_nodes=optimizer_nodes)
    cluster = Cluster(seed, Job(layout, update=update, poison_step=1), ORDERED)

    def is_lost(receiver: str, message: object) -> bool:
        if not is_skip(message) or not receiver.startswith("switch"):
            return False
        if not lost:
            cluster.reconnect("switch 0")
        return len(lost) < 2 * optimizer_nodes

    lost = cluster.lose_messages(is_lost)
    cluster.run()
    assert len(lost) == 2 * optimizer_nodes
    assert cluster.skipped_steps() == {1}
    assert all(worker.aborts_count == 0 for worker in cluster.workers)


@every_update
def test_the_verdict_of_a_skipped_step_is_lost_with_the_connection(update: str) -> None:
    """I2. Goal: a node that has missed the attempt that a skip opened costs no attempt. Method:
    lose the verdict to node 1, and then the switch's connections; no attempt is given up."""
    cluster = Cluster(0, Job(make_layout(optimizer_nodes=2), update=update, poison_step=1), ORDERED)

    def is_lost(receiver: str, message: object) -> bool:
        if lost or receiver != "node-1" or not is_skip(message):
            return False
        cluster.world.soon(lambda: cluster.reconnect("switch 0"))
        return True

    lost = cluster.lose_messages(is_lost)
    cluster.run()
    assert len(lost) == 1
    assert cluster.skipped_steps() == {1}
    assert all(worker.aborts_count == 0 for worker in cluster.workers)
