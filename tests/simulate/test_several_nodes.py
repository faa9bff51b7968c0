"""Several optimizer nodes behind one switch: one joint decision a step, whatever is lost or killed.

Every `Cluster.run` checks, beside what it checks of one node, that no disk decides a version alone
(I2, E2): only what all have prepared under one attempt, or have decided.
"""

from __future__ import annotations

import pytest

from luwu.base.retry import RetryPolicy
from luwu.wire import messages as wire
from switch_emu.node.core.actions import NodeLimits
from switch_emu.switch.core.actions import SwitchLimits
from tests.simulate.cluster import Cluster
from tests.simulate.job import Job, make_layout
from tests.simulate.seeds import seeds
from tests.simulate.world import ROUGH, Faults

ORDERED = Faults(is_ordered=True)
UPDATES = ["streaming", "at_step"]


@pytest.mark.parametrize("update", UPDATES)
def test_norm_and_weights_do_not_depend_on_the_number_of_nodes(update: str) -> None:
    """I3. Goal: one to four nodes end with the same weights and say the same norms, bit for bit."""
    norms = []
    for optimizer_nodes in (1, 2, 3, 4):
        cluster = Cluster(
            0, Job(make_layout(optimizer_nodes=optimizer_nodes), update=update), ORDERED
        )
        cluster.run_to_the_end()
        norms.append([cluster.workers[0].decided[step].norms for step in range(4)])
    assert norms[0] == norms[1] == norms[2] == norms[3]
    assert all(norm > 0 for of_step in norms[0] for norm in of_step)


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize("update", UPDATES)
def test_nothing_is_repeated_on_whole_connections(seed: int, update: str) -> None:
    """I6. Goal: where nothing is lost or overtaken, no answer waits for a request said again, also
    between nodes, however slow one of them decides. Method: a repetition comes too late."""
    never = RetryPolicy(first_ns=10**13, most_ns=10**13)
    job = Job(
        make_layout(optimizer_nodes=2 + seed % 3), world_size=2, steps=6, update=update,
        retry=never,
        absent_unit=1 if seed % 2 else None, poison_step=2 if seed % 4 == 3 else None,
        keeps=seed % 3 == 0, begins_early=False, prepare_ns=300_000_000 * (seed % 3),
    )  # fmt: skip
    Cluster(seed, job, ORDERED).run_to_the_end()


@pytest.mark.parametrize("seed", seeds(10))
@pytest.mark.parametrize("update", UPDATES)
def test_not_finite(seed: int, update: str) -> None:
    """I2. Goal: a gradient that is not finite on one node's chunk skips the step on all of them."""
    job = Job(make_layout(optimizer_nodes=3), update=update, poison_step=1)
    cluster = Cluster(seed, job, ROUGH)
    cluster.run()
    for worker in cluster.workers:
        assert [worker.decided[step].applied for step in range(4)] == [True, False, True, True]


@pytest.mark.parametrize("seed", seeds(10))
def test_lost_connections(seed: int) -> None:
    """I1. Goal: connections between switch and nodes that come back lose and abort nothing."""
    cluster = Cluster(seed, Job(make_layout(optimizer_nodes=2)), ROUGH)
    for _ in range(6):
        cluster.world.at(cluster.world.random.randrange(2 * 10**9), cluster.reconnect_switch)
    cluster.run()
    assert all(worker.aborts_count == 0 for worker in cluster.workers)


@pytest.mark.parametrize("seed", seeds(8))
def test_small_windows_and_no_slots(seed: int) -> None:
    """I5. Goal: with room for one chunk at a time, and chunks summed at their node, all arrives."""
    job = Job(
        make_layout(optimizer_nodes=2),
        switch_limits=SwitchLimits(push_window_bytes=1, slot_bytes_max=60_000 * (seed % 2)),
        node_limits=NodeLimits(updates_max=1, reads_max=1, push_window_bytes=1),
    )
    Cluster(seed, job, ROUGH).run()


@pytest.mark.parametrize("update", UPDATES)
def test_the_verdict_of_a_skipped_step_is_lost_with_the_connection(update: str) -> None:
    """I2. Goal: a node that has missed the attempt that a skip opened costs no attempt. Method:
    lose the verdict to node 1, and then the switch's connections; no attempt is given up."""
    cluster = Cluster(0, Job(make_layout(optimizer_nodes=2), update=update, poison_step=1), ORDERED)
    send, lost = cluster.world.send, []

    def losing(sender: str, receiver: str, message: object, payload: object) -> None:
        is_skip = isinstance(message, wire.Verdict) and not message.applied
        if is_skip and not lost and receiver == "node-1":
            lost.append(message)
            cluster.world.soon(cluster.reconnect_switch)
        else:
            send(sender, receiver, message, payload)  # type: ignore[arg-type]

    cluster.world.send = losing  # type: ignore[method-assign]
    cluster.run()
    assert lost
    for worker in cluster.workers:
        assert [worker.decided[step].applied for step in range(4)] == [True, False, True, True]
        assert worker.aborts_count == 0
