"""Integer aggregation in whole clusters: histories of faults change nothing of the bits."""

from __future__ import annotations

from itertools import product

import pytest

from switch_emu.switch.core.actions import SwitchLimits
from tests.simulate.cluster import Cluster
from tests.simulate.job import Job, make_layout
from tests.simulate.seeds import seeds
from tests.simulate.trees import TREES
from tests.simulate.world import ROUGH, Faults

INTEGERS = "shared-exponent"


@pytest.mark.parametrize("seed", seeds(4, quick=2))
def test_ranks_push_in_different_orders(seed: int) -> None:
    """I5. Goal: ranks that wait for each other's statements do not wait for ever, though what each
    may have under way is one chunk."""
    limits = SwitchLimits(push_window_bytes=1)
    update = "streaming" if seed % 2 else "at_step"
    job = Job(
        make_layout(), switch_limits=limits, update=update, any_order=True, aggregate=INTEGERS
    )
    Cluster(seed, job, ROUGH).run()


@pytest.mark.feature("aggregation in integers")
def test_integers_have_one_digest_in_each_fidelity() -> None:
    """I3. Goal: one digest for every tree, number of nodes and order of arrival, with slots or
    without. Method: each tree of four workers before one to three nodes, on ordered and rough
    networks, functional or with two slots; trees of float32 differ (`test_trees.py`)."""
    digests = set()
    trees = [None, *(tree for tree in TREES.values() if tree.workers == 4)]
    for number, (tree, optimizer_nodes) in enumerate(product(trees, (1, 2, 3))):
        job = Job(
            make_layout(optimizer_nodes=optimizer_nodes), world_size=4, switches=tree, steps=3,
            slot_count=2 if number % 2 else None, aggregate=INTEGERS,
        )  # fmt: skip
        digests.add(Cluster(number, job, ROUGH if number % 3 else Faults()).run())
    assert len(digests) == 1
