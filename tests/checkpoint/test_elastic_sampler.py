"""Samples of a job whose workers come and go: each counts once in the decided steps of an epoch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import luwu
from luwu.training.script import run
from luwu.training.script.elastic_sampler import ElasticSampler
from tests.helpers.real_training import in_cluster

SAMPLES = 23


@dataclass
class Attempts:
    """What a sampler asks a session: who counts. It stands for any history of losses."""

    rank: int = 0
    counted_ranks: list[int] = field(default_factory=list)
    is_final: bool = True

    @property
    def attachments(self) -> Attempts:
        return self

    def has(self, thing: object) -> bool:
        return True


@pytest.mark.feature("samples counted once, over any number of workers")
@pytest.mark.parametrize("seed", range(30))
def test_each_sample_is_counted_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: whoever is lost, comes back or joins, and whichever attempts are given up, the decided
    steps of an epoch have each of its samples once. Method: random attempts; after a lost one each
    rank is back at the position that the last decided step left."""
    chance = random.Random(seed)
    session = Attempts()
    monkeypatch.setattr(run, "session", lambda: session)
    batch_size, epochs = chance.randrange(1, 5), 3
    world = chance.randrange(1, 6)
    samplers = [ElasticSampler(SAMPLES, batch_size, seed=seed) for _ in range(world)]
    under_way: list[Iterator[list[int]] | None] = [None] * world
    state = {"position": 0}
    stream: list[int] = []
    while state["position"] < epochs * SAMPLES:
        session.counted_ranks = sorted(chance.sample(range(world), chance.randrange(1, world + 1)))
        for _ in range(chance.randrange(1, 4)):  # steps of this attempt
            read: list[int] = []
            for rank in session.counted_ranks:
                session.rank, sampler = rank, samplers[rank]
                batches = under_way[rank]
                if batches is None:
                    sampler.load_state_dict(state)
                    batches = sampler.batches()
                batch = next(batches, None)
                if batch is None:  # the epoch is over: the loop begins the next
                    batches = sampler.batches()
                    batch = next(batches)
                under_way[rank] = batches
                read += batch
            if chance.random() < 0.3:  # the attempt is lost
                under_way = [None] * world
                break
            stream += read
            here = {samplers[rank].position for rank in session.counted_ranks}
            assert here == {len(stream)}
            state = samplers[session.counted_ranks[0]].state_dict()
            for rank in set(range(world)) - set(session.counted_ranks):
                under_way[rank] = None  # it takes the state of the others when it is back
    for epoch in range(epochs):
        counted = Counter(stream[epoch * SAMPLES : (epoch + 1) * SAMPLES])
        assert counted == Counter(range(SAMPLES))


def test_ranks_share_a_step_in_order() -> None:
    """Goal: the order is that of the seed and the epoch, or none; the end of an epoch is filled."""
    plain = ElasticSampler(5, 2, shuffle=False)
    assert plain.indices(3, 4) == [3, 4, 0, 1]
    mixed = ElasticSampler(5, 2, seed=7)
    first, second = mixed.indices(0, 5), mixed.indices(5, 5)
    assert sorted(first) == sorted(second) == [0, 1, 2, 3, 4]
    assert first != second
    assert ElasticSampler(5, 2, seed=7).indices(0, 10) == first + second
    assert ElasticSampler(5, 2, seed=8).indices(0, 10) != first + second


def test_what_cannot_be_sampled() -> None:
    for given in ((0, 2), (2, 0)):
        with pytest.raises(luwu.ConfigError, match="is 0, expected at least 1"):
            ElasticSampler(*given)


class Data(torch.utils.data.Dataset[Any]):
    """Each sample is its number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), float(index))


def script(epochs: int, *, cancel: int | None = None, attach: bool = True) -> Any:
    """A loop over a loader; the samples of each step, as this rank made it last."""

    def work(rank: int) -> Any:
        model = torch.nn.Linear(64, 4)
        luwu.fully_shard(model)
        optimizer = luwu.optim.SGD(model.parameters(), lr=1e-4)
        sampler = ElasticSampler(SAMPLES, 2, seed=3)
        if attach:
            luwu.attach("sampler", sampler)
        made: dict[int, list[int]] = {}
        is_cancelled = False
        while sampler.epoch < epochs:
            try:
                for x in sampler.batches(lambda found: DataLoader(Data(), batch_sampler=found)):
                    step = optimizer.next_step
                    made[step] = x[:, 0].int().tolist()
                    model(x).square().mean().backward()
                    if step == cancel and rank == 0 and not is_cancelled:
                        is_cancelled = True
                        with luwu.session().attempt:
                            luwu.session().nic.cancel("the test loses this step")
                    optimizer.step()
            except luwu.StepAborted:
                continue
        return made

    return work


@pytest.mark.feature("samples counted once, over any number of workers")
def test_a_resumed_run_continues_at_the_sample(tmp_path: Path) -> None:
    """I3. Goal: one epoch by three workers, with a step that is lost, the next two by two: each
    sample once per epoch. Method: real switch, node and store."""
    state = tmp_path / "state"
    first = in_cluster(tmp_path, script(1, cancel=2), world_size=3, state=state).results
    then = in_cluster(tmp_path, script(3), world_size=2, state=state, resume=True).results
    steps: dict[int, list[int]] = {}
    for made in (*first, *then):
        for step, samples in made.items():
            steps.setdefault(step, []).extend(samples)
    stream = [sample for step in sorted(steps) for sample in steps[step]]
    for epoch in range(3):
        assert sorted(stream[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(SAMPLES))


def test_a_position_that_would_be_lost(tmp_path: Path) -> None:
    """Goal: a sampler that is not attached is refused, and so is a batch that is used again."""
    with pytest.raises(luwu.StepOrderError, match=r'luwu\.attach\("sampler", sampler\)'):
        in_cluster(tmp_path, script(1, attach=False))

    def work(rank: int) -> None:
        model = torch.nn.Linear(64, 4)
        luwu.fully_shard(model)
        luwu.optim.SGD(model.parameters(), lr=1e-4)
        sampler = ElasticSampler(SAMPLES, 2)
        luwu.attach("sampler", sampler)
        batches = sampler.batches()
        next(batches)
        sampler.load_state_dict({"position": 0})  # as before a lost step
        with pytest.raises(luwu.StepOrderError, match="with the batch of its first attempt"):
            next(batches)

    in_cluster(tmp_path, work)
