"""What only workers hold: kept with every step, found by a resumed run, given back to a replay."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import luwu
from luwu.base.errors import StateError
from luwu.nic.reader import FieldRead
from tests.helpers.exports import flip
from tests.helpers.real_training import in_cluster, seeded
from tests.helpers.small_models import Block

STEPS = 6


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.block(x)) * noise
        return y


class Cursor:
    """A sampler that says where it is."""

    def __init__(self) -> None:
        self.index = 0

    def __next__(self) -> torch.Tensor:
        self.index += 1
        return torch.randn(8, 64, generator=torch.Generator().manual_seed(self.index))

    def state_dict(self) -> int:
        return self.index

    def load_state_dict(self, state: int) -> None:
        self.index = state


def script(
    stop: int, *, lose: int | None = None, attach_first: bool = False, random_seed: int = 0,
    after: Callable[[int, Any], object] = lambda *_: None,
) -> Any:  # fmt: skip
    """A loop that only goes on rightly if everything around the weights is right; `after` is called
    with the number of steps that are made and the result of the last."""

    def work(rank: int) -> Any:
        generator = torch.Generator().manual_seed(1000 + rank + random_seed)
        model = seeded(Model)
        luwu.fully_shard(model.block)
        luwu.fully_shard(model)
        cursor, counts = Cursor(), {"batches": 0}

        def attach() -> None:
            luwu.attach("cursor", cursor)
            luwu.attach("counts", counts)
            luwu.attach("buffers", model, per_rank=True)
            luwu.attach("noise", generator, per_rank=True)

        if attach_first:
            attach()
        optimizer = luwu.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        if not attach_first:
            attach()
        luwu.attach("scheduler", scheduler)
        lost = False
        step = optimizer.next_step
        while step < stop:
            try:
                x = next(cursor)
                counts["batches"] += 1
                noise = torch.rand(8, 64, generator=generator)
                model(x, noise).square().mean().backward()
                if step == lose and not lost:
                    lost = True
                    with luwu.session().attempt:
                        luwu.session().nic.cancel("the test loses this step")
                result = optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                step += 1
                after(step, result)
            except luwu.StepAborted as error:
                step = error.step
        luwu.session().results.last.wait()  # nothing is lost so late
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        return cursor.index, counts["batches"], scheduler.get_last_lr(), buffers

    return work


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return in_cluster(tmp_path_factory.mktemp("undisturbed"), script(STEPS), world_size=2)


def assert_same(found: Any, expected: Any) -> None:
    assert found.digest == expected.digest
    for (*plain, buffers), (*plain_expected, buffers_expected) in zip(
        found.results, expected.results, strict=True
    ):
        assert plain == plain_expected
        assert all(torch.equal(buffers[name], buffers_expected[name]) for name in buffers)


@pytest.mark.feature("luwu.attach")
@pytest.mark.parametrize("attach_first", [False, True])
@pytest.mark.parametrize("has_switch", [False, True], ids=["no-switch", "switch"])
def test_a_resumed_run_finds_what_was_attached(
    attach_first: bool, has_switch: bool, undisturbed: Any, tmp_path: Path
) -> None:
    """I3. Goal: stopped after three steps and started anew, the run ends with the same bits:
    scheduler, cursor, generator and buffers of each rank go on where they were."""
    state = tmp_path / "state"
    half = script(3, attach_first=attach_first)
    rest = script(STEPS, attach_first=attach_first, random_seed=77)  # what it starts with is void
    in_cluster(tmp_path, half, world_size=2, state=state, has_switch=has_switch)
    kept = sorted(path.name.split("-")[1] for path in state.glob("kept-*"))
    assert kept == ["2", "3"]  # that of the last step, and that of the one before it
    found = in_cluster(
        tmp_path, rest, world_size=2, state=state, resume=True, has_switch=has_switch
    )
    assert_same(found, undisturbed)


@pytest.mark.feature("luwu.attach")
@pytest.mark.parametrize("lose", [0, 1, 4])
def test_a_replay_begins_with_what_was_attached(
    lose: int, undisturbed: Any, tmp_path: Path
) -> None:
    """I3. Goal: after StepAborted the step is computed again with the same batch, the same random
    numbers, the same buffers and learning rate."""
    assert_same(in_cluster(tmp_path, script(STEPS, lose=lose), world_size=2), undisturbed)


@pytest.mark.feature("resume at another number of workers")
def test_more_ranks_than_before(tmp_path: Path) -> None:
    """Goal: a new rank takes rank 0's state where it is one for all, and keeps its own where it
    differs by rank; it says so."""
    state = tmp_path / "state"
    in_cluster(tmp_path, script(3), world_size=1, state=state)

    def resumed(rank: int) -> Any:
        model = seeded(Model)
        luwu.fully_shard(model.block)
        luwu.fully_shard(model)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=0.01)
        cursor, generator = Cursor(), torch.Generator().manual_seed(5)
        luwu.attach("cursor", cursor)
        luwu.attach("noise", generator, per_rank=True)
        return optimizer.next_step, cursor.index, generator.initial_seed() == 5

    found = in_cluster(tmp_path, resumed, world_size=2, state=state, resume=True).results
    assert found == [(3, 3, False), (3, 3, True)]


def test_random_state_is_that_of_all_generators() -> None:
    """Goal: torch's, numpy's and Python's generators go back."""
    state = luwu.random_state()
    before = state.state_dict()
    first = (torch.rand(3), np.random.rand(3), random.random())
    state.load_state_dict(before)
    second = (torch.rand(3), np.random.rand(3), random.random())
    assert torch.equal(first[0], second[0])
    assert (first[1] == second[1]).all()
    assert first[2] == second[2]


def test_what_cannot_be_attached(tmp_path: Path) -> None:
    """I7. Goal: each mistake is an error that names it, as an object in a state is."""

    def work(rank: int) -> None:
        model = seeded(Model)
        luwu.fully_shard(model)
        with pytest.raises(luwu.ConfigError, match="a list has no state_dict"):
            luwu.attach("list", [1, 2])
        with pytest.raises(luwu.ConfigError, match=r"attached\['odd'\]\['x'\]"):
            luwu.attach("odd", {"x": object()})
        luwu.attach("counts", {"n": 0})
        with pytest.raises(luwu.ConfigError, match="attached already"):
            luwu.attach("counts", {"n": 0})
        luwu.optim.SGD(model.parameters())
        model(torch.ones(8, 64), torch.ones(8, 64)).sum().backward()
        with pytest.raises(luwu.StepOrderError, match="after the first forward"):
            luwu.attach("more", {})

    in_cluster(tmp_path, work)


def _small() -> tuple[nn.Module, Any]:
    model = seeded(Model)
    luwu.fully_shard(model)
    return model, luwu.optim.SGD(model.parameters())


def test_large_states_travel_in_pieces(tmp_path: Path) -> None:
    """Goal: what is larger than a chunk comes back whole; damage is found. Method: 100 KiB beside
    chunks of 16 KiB; then one byte of the file is changed."""
    state = tmp_path / "state"
    values = torch.arange(25_600, dtype=torch.float32)

    def work(first: bool) -> Any:
        def run(rank: int) -> Any:
            model, optimizer = _small()
            kept = {"values": values if first else torch.zeros(1)}
            luwu.attach("kept", kept)
            if first:
                model(torch.ones(8, 64), torch.ones(8, 64)).sum().backward()
                optimizer.step().wait()
            return kept["values"]

        return run

    in_cluster(tmp_path, work(True), state=state)
    found = in_cluster(tmp_path, work(False), state=state, resume=True).results[0]
    assert torch.equal(found, values)
    path = max(state.glob("kept-*"))
    assert path.stat().st_size > 6 * 16 * 1024
    flip(path, 50_000)
    with pytest.raises(StateError, match=r"piece \d at byte \d+ changed after it was written"):
        in_cluster(tmp_path, work(False), state=state, resume=True)
    path.unlink()
    with pytest.raises(StateError, match="cannot be opened"):
        in_cluster(tmp_path, work(False), state=state, resume=True)


def test_readers_see_what_is_attached(tmp_path: Path) -> None:
    """Goal: a rank that attached nothing, and a version without, are named."""

    def work(rank: int) -> None:
        _small()
        with luwu.session().open_reader() as reader:
            assert reader.facts.attached == {}
            assert reader.read_attached(0) is None
            with pytest.raises(StateError, match="attached no piece 0"):
                reader.read([FieldRead(0, "attached.0", memoryview(bytearray(4)))])

    in_cluster(tmp_path, work)


SCHEDULERS: dict[str, Any] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4], 0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.5, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.7),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.5), lr_scheduler.ExponentialLR(o, 0.7)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5), lr_scheduler.ExponentialLR(o, 0.7)], o
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
}


def test_every_scheduler_of_torch_is_here() -> None:
    """Goal: a scheduler that a new version of torch brings is tried too."""
    theirs = {
        name for name, each in vars(lr_scheduler).items()
        if isinstance(each, type) and issubclass(each, lr_scheduler.LRScheduler)
        and not name.startswith("_")
    }  # fmt: skip
    assert theirs - {"LRScheduler", "SWALR"} <= set(SCHEDULERS)
