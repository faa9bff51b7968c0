"""Trees of switches on a rough network: I1, I2, I3 whatever happens to whichever switch.

The plain loop of the oracles adds as the tree does (`tests/simulate/job.py`), so an extent that was
summed in another order than that of the tree fails bit for bit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from luwu.base.tree import Tree, one_switch
from luwu.wire import messages as wire
from switch_emu.switch.core.actions import SwitchLimits
from tests.simulate.cluster import Cluster
from tests.simulate.job import SMALL_SWITCH, Job, gradient, make_layout, tree_sum
from tests.simulate.machines import Switch
from tests.simulate.seeds import seeds
from tests.simulate.test_clusters import NEVER_NS, is_skip
from tests.simulate.trees import TREES, every_tree
from tests.simulate.world import ROUGH, Faults


def job_in(tree: Tree, **keys: object) -> Job:
    """A small job with as many workers as the tree has."""
    return Job(make_layout(), world_size=tree.workers, switches=tree, **keys)  # type: ignore[arg-type]


def test_sums_of_trees_differ_in_bits_only() -> None:
    """I3. Goal: the tree matters to float sums, and to nothing else: without this the tests below
    could not fail. Method: compare the plain sums of the trees of four workers."""
    grads = {rank: gradient(np.ones(4096, np.float32), rank, 0, 0, 0) for rank in range(4)}
    flat = one_switch(4)
    expected = tree_sum(flat, flat.root, grads)
    for name in ("two levels", "ranks in turn", "workers and a switch"):
        found = tree_sum(TREES[name], TREES[name].root, grads)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
        assert not np.array_equal(found, expected), name


@every_tree
def test_one_gradient_travels_up_each_link(tree: Tree) -> None:
    """Goal: on a whole network every switch pushes each extent to its parent once, and pulls it
    once a use, however many children it has.
    Method: count the data messages on each link of a job of two steps."""
    job = job_in(tree, steps=2, begins_early=False, switch_limits=SwitchLimits())
    cluster = Cluster(0, job, Faults(is_ordered=True, delay_ns_max=100_000))
    pushes, weights = Counter[str](), Counter[str]()

    def count(sender: str, receiver: str, message: object, payload: object) -> None:
        pushes[sender] += isinstance(message, wire.Push)
        weights[receiver] += isinstance(message, wire.Weights)

    cluster.world.eavesdropper = count
    cluster.run()
    chunks = job.layout.chunks
    trainable = sum(chunk.trainable for chunk in chunks)
    uses = 2  # forward and backward
    names = [place.process for place in tree] + [worker.name for worker in cluster.workers]
    assert +pushes == dict.fromkeys(names, job.steps * trainable)
    assert +weights == dict.fromkeys(names, job.steps * uses * len(chunks))


@every_tree
@pytest.mark.parametrize("seed", seeds(6, quick=2))
@pytest.mark.parametrize("update", ["streaming", "at_step"])
def test_no_slots_in_some_switches(seed: int, update: str, tree: Tree) -> None:
    """I3, S5. Goal: extents that find no slot are added at the node in the order of the tree.
    Method: no switch, every switch in turn, or all of them, have slots for few extents."""
    limits = SwitchLimits(
        slot_bytes_max=60_000 * (seed % 2), push_window_bytes=50_000, drop_after_ns=NEVER_NS
    )
    job = job_in(
        tree, update=update, backwards=2 if update == "at_step" else 1, switch_limits=limits
    )
    cluster = Cluster(seed, job, ROUGH)
    if seed >= 2:  # only one of the switches is small
        roomy = replace(job, switch_limits=SMALL_SWITCH)
        for index, place in enumerate(tree):
            if index != seed % len(tree):
                new = Switch(cluster.world, roomy, place, incarnation=1)
                cluster.switches[place.name] = new
    cluster.run()
    assert sum(switch.core.raw_up.count for switch in cluster.switches.values()) > 0


@pytest.mark.parametrize("seed", seeds(3, quick=1))
@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize(
    ("who", "is_asked"),
    [*((who, False) for who in ("switch 0", "switch 1", "switch 2", "worker 0")),
     ("switch 1", True), ("switch 2", True)],
)  # fmt: skip
def test_a_skip_is_lost_with_a_connection_of_a_tree(
    seed: int, update: str, who: str, is_asked: bool
) -> None:
    """I2. Goal: at every level, whoever missed the verdict that skipped a step and its decision
    learns of both by the Welcome, and so does whoever is below; no attempt is given up. Method: the
    connection upwards breaks as the step is skipped, and both messages are lost with it; or the
    parent asks the switch to join again."""
    job = job_in(TREES["three levels"], update=update, poison_step=1)
    cluster = Cluster(seed, job, Faults(is_ordered=True))
    name = cluster.process(who).name

    def is_lost(receiver: str, message: object) -> bool:
        if not is_skip(message) or not receiver.startswith(name) or len(lost) == 2:
            return False
        if len(lost) == 1:
            cluster.world.soon(again)
        return True

    def again() -> None:
        if not is_asked:
            cluster.reconnect(who)
            return
        process = cluster.process(who)
        assert isinstance(process, Switch)
        rejoin = process.core.outbox.stamped(wire.Rejoin)
        process._received(job.tree.parent_process(process.place), rejoin, None)

    lost = cluster.lose_messages(is_lost)
    cluster.run()
    assert [type(each) for each in lost] == [wire.Verdict, wire.Decided]
    assert cluster.skipped_steps() == {1}
    assert all(worker.aborts_count == 0 for worker in cluster.workers)
