"""Ranks that are lost are left out of the next attempts, and count again when they are back.

I1, I3: what is decided is the training of the ranks that the ledger names, step by step, and of no
other; I6: whoever dies, the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from luwu.nic.core import NicCore
from switch_emu.node import actions as node_actions
from switch_emu.node.actions import NodeLimits
from switch_emu.switch.actions import SwitchLimits
from tests.simulate import cluster as clusters
from tests.simulate.chaos import ROUGH
from tests.simulate.cluster import Cluster
from tests.simulate.job import (
    JOB,
    Job,
    apply_update,
    gradient,
    initial,
    make_layout,
    tree_sum,
)
from tests.simulate.machines import Node
from tests.simulate.trees import TREES
from tests.simulate.worker import Worker
from tests.simulate.world import Faults

PATIENCE_NS = 2 * 10**9
"""Longer than a message takes on the roughest network, with all its repetitions."""


class LedgerNode(Node):
    """A node whose ledger says what the core said."""

    def _prepare(self, action: node_actions.Prepare) -> Any:
        vars(self.disk).setdefault("made_by", {})[action.version] = action.contributors
        return super()._prepare(action)

    def _decide(self, action: node_actions.Decide) -> Any:
        said = super()._decide(action)
        self.disk.ledger[action.version] = vars(self.disk)["made_by"][action.version]
        return said


def training_of(job: Job, ledger: Mapping[int, int]) -> dict[int, Any]:
    """The weights after the last step, where each step is made by those whom the ledger names."""
    layout = job.layout
    weights = {chunk.index: initial(layout, chunk.index) for chunk in layout.chunks}
    momentum = {index: np.zeros_like(values) for index, values in weights.items()}
    for step in range(job.steps):
        ranks = [rank for rank in range(job.world_size) if ledger[step + 1] >> rank & 1]
        for index in (chunk.index for chunk in layout.chunks if chunk.trainable):
            grads = {rank: gradient(weights[index], rank, step, index, 0) for rank in ranks}
            total = tree_sum(job.tree, job.tree.root, grads)
            weights[index], momentum[index] = apply_update(
                weights[index], momentum[index], total / np.float32(len(ranks)), 1.0
            )
    return weights


class Settled(dict[int, Any]):
    """What a worker knows of decisions; one that was started again waits for no older ones."""

    def __init__(self, core: NicCore) -> None:
        super().__init__()
        self._core = core

    def __contains__(self, step: object) -> bool:
        return super().__contains__(step) or self._core._statements.committed is None


class DroppingCluster(Cluster):
    """Workers may be killed and started again; the job goes on without them."""

    def __init__(self, seed: int, job: Job, faults: Faults, monkeypatch: Any) -> None:
        monkeypatch.setattr(clusters, "Node", LedgerNode)
        super().__init__(seed, job, faults)
        self.starts_count = 0
        self.gone: set[int] = set()

    def kill_worker(self, rank: int) -> None:
        """Not before there is anything to go on with, and never the last one."""
        worker = self.workers[rank]
        is_last = len(self.gone) + 1 == len(self.workers)
        if worker.finished or rank in self.gone or is_last or self.disks[0].version is None:
            return
        worker.alive, worker._script = False, None
        worker._do = lambda actions: None  # type: ignore[method-assign]
        self.gone.add(rank)
        self.world.silence(worker.name)
        switch = self.switches[self.job.tree.leaf_of(rank).name]
        if switch.alive:
            switch._do(switch.core.lost(self.world.now_ns, worker.name))

    def start_worker(self, rank: int) -> None:
        """The same rank again, as a process that knows nothing."""
        if rank not in self.gone:
            return
        self.gone.discard(rank)
        self.starts_count += 1
        worker = Worker(self.world, self.job, rank, self.job.tree.leaf_of(rank).process)
        worker.core = NicCore(
            job=JOB, rank=rank, world_size=self.job.world_size, retry=self.job.retry,
            incarnation=1000 * self.starts_count + rank,
        )  # fmt: skip
        worker.settled = Settled(worker.core)
        self.world.silence(worker.name)
        worker.name = f"worker-{rank}+{self.starts_count}"
        self.world.listen(worker.name, worker._received)
        self.workers[rank] = worker

    def finish(self) -> None:
        """Until whoever is there has finished; checks the state against the ledger."""

        def is_over() -> bool:
            workers = enumerate(self.workers)
            return all(w.finished or w.refused or rank in self.gone for rank, w in workers)

        self.world.run(is_over, limit_ns=900 * 10**9)
        ledger = self.disks[0].ledger
        expected = training_of(self.job, ledger)
        for disk in self.disks:
            assert disk.version == self.job.steps, f"seed {self.seed}"
            assert disk.ledger == ledger, f"seed {self.seed}"
            for chunk, (_, weights, _) in disk.pages.items():
                np.testing.assert_array_equal(weights, expected[chunk], f"seed {self.seed}")


def dropping_job(seed: int) -> Job:
    """A job that goes on without ranks that are lost; its shape follows from the seed."""
    tree = list(TREES.values())[seed // 2 % 4] if seed % 2 else None
    return Job(
        make_layout(units=2 + seed % 2, node_count=1 + seed // 3 % 2),
        world_size=3 if tree is None else tree.workers,
        switches=tree,
        steps=8,
        update="at_step" if seed % 4 < 2 else "streaming",
        keeps=seed % 5 == 2,
        begins_early=False,
        slot_count=3 if seed % 7 == 3 else None,
        switch_limits=SwitchLimits(
            push_window_bytes=100_000, patience_ns=PATIENCE_NS,
            slot_bytes_max=150_000 if seed % 6 == 1 else 10_000_000,
        ),
        node_limits=NodeLimits(
            updates_max=2, reads_max=2, push_window_bytes=100_000, ranks_min=1
        ),
    )  # fmt: skip


@pytest.mark.parametrize("rank", range(3))
def test_the_others_go_on(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """I6. Goal: a rank that dies is left out after a while, rank 0 as well."""
    job = replace(dropping_job(0), keeps=True)
    cluster = DroppingCluster(rank, job, Faults(is_ordered=True), monkeypatch)
    cluster.world.at(200_000_000, lambda: cluster.kill_worker(rank))
    cluster.finish()
    made_by = list(cluster.disks[0].ledger.values())
    others = 0b111 & ~(1 << rank)
    assert made_by[:2] == [0b111, 0b111]
    assert made_by[-1] == others
    assert sorted(made_by, reverse=True) == sorted(made_by, key=lambda bits: bits == others)


def test_too_few_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6. Goal: with fewer ranks than the least, the job waits until one is back."""
    job = dropping_job(0)
    job = replace(job, node_limits=replace(job.node_limits, ranks_min=3))
    cluster = DroppingCluster(0, job, Faults(is_ordered=True), monkeypatch)
    cluster.world.at(200_000_000, lambda: cluster.kill_worker(1))
    cluster.world.at(20 * PATIENCE_NS, lambda: cluster.start_worker(1))
    cluster.finish()
    assert set(cluster.disks[0].ledger.values()) == {0b111}
    assert cluster.world.now_ns > 20 * PATIENCE_NS


@pytest.mark.parametrize("seed", range(120))
def test_lost_and_back(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1, I3, I6. Goal: ranks die and come back at any time, switches and nodes as well; what is
    decided is what the ledger says."""
    random = Random(seed)
    faults = Faults(is_ordered=True) if random.random() < 0.3 else ROUGH
    cluster = DroppingCluster(seed, dropping_job(seed), faults, monkeypatch)
    for _ in range(random.randrange(1, 5)):
        at_ns, rank = 80_000_000 + random.randrange(2 * 10**9), random.randrange(3)
        cluster.world.at(at_ns, lambda rank=rank: cluster.kill_worker(rank))
        if random.random() < 0.7:
            at_ns += random.randrange(5 * 10**9)
            cluster.world.at(at_ns, lambda rank=rank: cluster.start_worker(rank))
    for _ in range(random.randrange(3)):
        name, number = random.choice(list(cluster.switches)), random.randrange(len(cluster.nodes))
        interruptions = (
            lambda name=name: cluster.restart_switch(name),
            lambda number=number: cluster.restart_node(number),
            lambda name=name: cluster.reconnect_switch(name),
        )
        cluster.world.at(random.randrange(4 * 10**9), random.choice(interruptions))
    cluster.finish()
