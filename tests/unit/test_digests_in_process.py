"""I3: one digest, whatever the transport, the chunk, the memory and the place of the sum.

Real training of a small GPT by two worker threads over real sockets, 20 steps, all 24 ways: ipc,
tcp or shared memory, chunks of 16 KiB or 4 MiB, all in RAM or an eighth of it, with a switch or
without.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import luwu
from luwu.base.errors import StepAborted
from luwu.base.tree import leaves_per_group
from luwu.launch.local_cluster import LocalCluster
from luwu.nic.shell import Nic
from switch_emu.node.pages import weights_digest
from switch_emu.store.striped import StripedPages
from workers.data import Batches
from workers.gpt import GPT, GPTConfig, init_weights

STEPS = 20
CONFIG = GPTConfig(layers=2, width=64, heads=2, context=16)
TOKENS = np.random.default_rng(1).integers(0, 256, 20_000, dtype=np.uint16)

WAYS = list(
    itertools.product(
        ["ipc", "tcp", "shm"], ["16KiB", "4MiB"], ["in RAM", "an eighth"], [True, False]
    )
)
QUICK = (
    ("ipc", "16KiB", "in RAM", True),
    ("tcp", "16KiB", "an eighth", False),
    ("shm", "16KiB", "an eighth", True),
)
"""Ways with small chunks that are not slow: any transport, any memory, any place of the sum."""


def train(nic: Nic) -> list[float]:
    """What a training script does, with a NIC of the test's own; the losses."""
    torch.set_num_threads(1)
    luwu.init(nic=nic, device="cpu")
    with torch.device("meta"):
        model = GPT(CONFIG)
    for block in model.blocks:
        luwu.fully_shard(block)
    luwu.fully_shard(model)
    luwu.init_weights(model, functools.partial(init_weights, seed=5))
    optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-3, update="streaming")
    batches = Batches(TOKENS, context=CONFIG.context, seed=5)
    losses = [float("nan")] * STEPS
    step = optimizer.next_step
    while step < STEPS:
        try:
            x_BT, y_BT = batches.batch(step, rank=nic.rank, world_size=nic.world_size, per_rank=2)
            loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
            losses[step] = loss.item()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        except StepAborted as error:
            step = error.step
    luwu.finish()
    return losses


@functools.cache
def expected() -> set[str]:
    """Digests seen so far in this process: there must be one."""
    return set()


@pytest.mark.parametrize("way", [
    pytest.param(
        way, id="-".join(map(str, way)).replace(" ", "_"),
        marks=() if way[1] == "4MiB" or way in QUICK else pytest.mark.slow,
    )
    for way in WAYS
])  # fmt: skip
def test_digest_is_one(way: tuple[str, str, str, bool], tmp_path: Path) -> None:
    """I3. Goal: the same bits 24 ways. Method: compare with all ways run before in this process."""
    transport, chunk, memory, has_switch = way
    chunk_bytes = {"16KiB": 16 * 1024, "4MiB": 4 * 1024 * 1024}[chunk]
    # The state of this model is 1.5 MiB; a chunk of 4 MiB is cut down to the unit by the layout,
    # but the plan counts whole chunks.
    state_bytes = 12 * sum(p.numel() for p in GPT(CONFIG).parameters())
    budget = 400 * 2**20 if memory == "in RAM" else max(state_bytes // 8, 20 * chunk_bytes)
    with LocalCluster(
        world_size=2,
        state=tmp_path / "state",
        memory_budget_bytes=budget,
        chunk_bytes=chunk_bytes,
        transport=transport,
        has_switch=has_switch,
        summary=tmp_path / "summary.json",
    ) as cluster:
        cluster.run(train)
        expected().add(cluster.weights_digest())
    assert len(expected()) == 1, f"{way} gave other bits than the ways before it"


def test_a_tree_above_several_nodes_has_the_same_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3. Goal: leaves of one worker each, a root that leads three nodes, two copies of each page:
    the bits of one switch and one node."""
    monkeypatch.setattr("tests.unit.test_digests_in_process.STEPS", 4)
    state, digests = tmp_path / "state", set()
    for tree, nodes_count in ((None, 1), (leaves_per_group([(0,), (1,)]), 3)):
        with LocalCluster(
            world_size=2, state=state / str(nodes_count), memory_budget_bytes=64 * 2**20,
            chunk_bytes=16 * 1024, tree=tree, nodes_count=nodes_count,
            replicas=min(2, nodes_count), summary=tmp_path / "summary.json",
        ) as cluster:  # fmt: skip
            cluster.run(train)
            assert cluster.node.description is not None
            layout = cluster.node.description.layout
        with StripedPages(state / str(nodes_count), nodes_count) as pages:
            pages.lay_out(layout)
            digests.add(weights_digest(pages, layout))
    assert len(digests) == 1
