"""Whole clusters on a network that loses, repeats, delays and reorders: I1, I2, I3 by seeds.

`Cluster.run` checks the oracles of every history: the recorded contributors of each step (I1), the
state of one decided step (I2), and the bits of the plain loop (I3).
"""

from __future__ import annotations

import numpy as np
import pytest

from luwu.base.retry import RetryPolicy
from luwu.wire import messages as wire
from switch_emu.node.core.actions import NodeLimits
from switch_emu.switch.core.actions import SwitchLimits
from tests.simulate.cluster import Cluster
from tests.simulate.job import Job, make_layout
from tests.simulate.seeds import seeds
from tests.simulate.world import ROUGH, Faults


@pytest.mark.parametrize("seed", seeds(30))
@pytest.mark.parametrize("update", ["streaming", "at_step"])
def test_nothing_is_repeated_on_a_whole_connection(seed: int, update: str) -> None:
    """I6. Goal: where nothing is lost or overtaken, no answer waits for a request said again,
    however far a fast worker is ahead of a slow decision.
    Method: a repetition comes later than the end of the test."""
    never = RetryPolicy(first_ns=10**13, most_ns=10**13)
    job = Job(
        make_layout(), world_size=2 + seed % 3, steps=6, update=update, retry=never,
        absent_unit=1 if seed % 2 else None, begins_early=False,
        prepare_ns=300_000_000 * (seed % 3),
    )  # fmt: skip
    Cluster(seed, job, Faults(is_ordered=True)).run()


@pytest.mark.parametrize("seed", seeds(30))
def test_no_slots_at_all(seed: int) -> None:
    """I1, I3. Goal: extents that find no slot are summed at the node, with the same bits."""
    limits = SwitchLimits(slot_bytes_max=60_000 * (seed % 2), push_window_bytes=50_000)
    job = Job(make_layout(), switch_limits=limits)
    cluster = Cluster(seed, job, ROUGH)
    cluster.run()
    assert cluster.switch.core.raw_up.count > 0


@pytest.mark.parametrize("seed", seeds(30))
def test_no_copies_kept(seed: int) -> None:
    """I3. Goal: a switch that can keep no weights fetches them again, and counts it."""
    limits = SwitchLimits(copies_bytes_max=0, push_window_bytes=50_000)
    Cluster(seed, Job(make_layout(), switch_limits=limits), ROUGH).run()


@pytest.mark.parametrize("seed", seeds(30))
@pytest.mark.parametrize("update", ["streaming", "at_step"])
def test_not_finite(seed: int, update: str) -> None:
    """I2. Goal: a step with a gradient that is not finite is skipped as a whole, and said so."""
    cluster = Cluster(seed, Job(make_layout(), update=update, poison_step=1), ROUGH)
    cluster.run()
    for worker in cluster.workers:
        assert [worker.decided[step].applied for step in range(4)] == [True, False, True, True]


@pytest.mark.parametrize("seed", seeds(30))
@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_one_rank_leaves_a_step_out(seed: int, update: str, nodes: int) -> None:
    """I2. Goal: what one rank leaves out is left out on all, as a whole, also where its sums are
    finite and pages were updated already; the norm is what it is."""
    job = Job(make_layout(optimizer_nodes=nodes), update=update, skip_step=1)
    cluster = Cluster(seed, job, ROUGH)
    cluster.run()
    for worker in cluster.workers:
        assert [worker.decided[step].applied for step in range(4)] == [True, False, True, True]
        assert np.isfinite(worker.decided[1].norms[0])


@pytest.mark.parametrize("seed", seeds(40))
def test_lost_connections(seed: int) -> None:
    """I1. Goal: a connection that is lost and comes back loses nothing and aborts nothing."""
    cluster = Cluster(seed, Job(make_layout(), update="streaming"), ROUGH)
    for count in range(6):
        delay_ns = cluster.world.random.randrange(2 * 10**9)
        if count % 2:
            cluster.world.at(delay_ns, cluster.reconnect_switch)
        else:
            cluster.world.at(delay_ns, lambda: cluster.reconnect(rank=seed % 3))
    cluster.run()
    assert all(worker.aborts_count == 0 for worker in cluster.workers)


@pytest.mark.parametrize("seed", seeds(20))
def test_small_windows(seed: int) -> None:
    """I5. Goal: with room for one chunk at a time everything still arrives."""
    job = Job(
        make_layout(),
        switch_limits=SwitchLimits(push_window_bytes=1, slot_bytes_max=200_000),
        node_limits=NodeLimits(updates_max=1, reads_max=1, push_window_bytes=1),
    )
    Cluster(seed, job, ROUGH).run()


@pytest.mark.parametrize("seed", seeds(5, quick=2))
@pytest.mark.parametrize("optimizer_nodes", [1, 2])
@pytest.mark.parametrize("update", ["streaming", "at_step"])
def test_a_skip_is_lost_with_the_connection(seed: int, optimizer_nodes: int, update: str) -> None:
    """I2. Goal: a switch that hears of the attempt after a skipped step by the answer to its Hello
    goes on as if it had heard of the skip. Method: its connection breaks as the step is skipped,
    and the verdict and the decision of that step are lost; no attempt is given up."""
    layout = make_layout(optimizer_nodes=optimizer_nodes)
    cluster = Cluster(seed, Job(layout, update=update, poison_step=1), Faults(is_ordered=True))
    send, lost = cluster.world.send, []

    def losing(sender: str, receiver: str, message: object, payload: object) -> None:
        is_outcome = isinstance(message, wire.Verdict | wire.Decided) and not message.applied
        if is_outcome and receiver.startswith("switch") and len(lost) < 2 * optimizer_nodes:
            lost.append(message)
            if len(lost) == 1:
                cluster.reconnect_switch()
        else:
            send(sender, receiver, message, payload)  # type: ignore[arg-type]

    cluster.world.send = losing  # type: ignore[method-assign]
    cluster.run()
    assert len(lost) == 2 * optimizer_nodes
    for worker in cluster.workers:
        assert [worker.decided[step].applied for step in range(4)] == [True, False, True, True]
        assert worker.aborts_count == 0
