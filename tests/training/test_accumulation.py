"""Several backwards before a step, ranks of unequal batches: the bits of one larger batch.

Everything here runs through a real node. Sizes are multiples of 64 elements (I4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import luwu
from tests.helpers.real_training import Trained, digest_of, in_cluster, seeded, sharded, train_steps
from tests.helpers.small_models import Stack, batch, square_loss

STEPS = 3
SPILLING = 640 * 1024
"""Bytes of memory in which a node finds no room for all sums."""


def make() -> nn.Module:
    return seeded(lambda: Stack(blocks=2))


def on_one_rank(
    directory: Path, before: Callable[[Any, bool], object] = lambda *_: None,
    update: str = "at_step", **changes: Any,
) -> Trained:  # fmt: skip
    """Four micro-batches on one rank; `before(model, is_last)` is called before each backward."""

    def work(rank: int) -> int:
        model = sharded(make)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, update=update)
        for step in range(STEPS):
            for part in range(4):
                before(model, part == 3)
                (square_loss(model, step, part, 0) / 4).backward()
            optimizer.step()
        return luwu.session().nic.counters.push_bytes

    return in_cluster(directory, work, **changes)


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one backward a step on each of four ranks, which have a micro-batch each."""

    def work(rank: int) -> None:
        model = sharded(make)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2)
        train_steps(model, optimizer, 0, STEPS, rank)

    return in_cluster(tmp_path_factory.mktemp("four"), work, world_size=4).digest


@pytest.mark.feature("accumulation on the node")
@pytest.mark.parametrize("extent_chunks", [1, 3])
@pytest.mark.parametrize("is_spilled", [False, True])
def test_accumulation_digest_on_the_node(
    is_spilled: bool, extent_chunks: int, four_ranks: str, tmp_path: Path
) -> None:
    """I3. Goal: 4 micro-batches on 1 rank are 1 micro-batch on each of 4 ranks, bit for bit,
    whatever travels together, also where totals are spilled between two backwards."""
    place = {"state": tmp_path / "state", "memory_budget_bytes": SPILLING} if is_spilled else {}
    found = on_one_rank(tmp_path, extent_chunks=extent_chunks, **place)
    assert found.digest == four_ranks


@pytest.mark.feature("set_requires_gradient_sync, set_is_last_backward")
@pytest.mark.parametrize(
    ("update", "call"),
    [("at_step", "set_requires_gradient_sync"), ("streaming", "set_requires_gradient_sync"),
     ("streaming", "set_is_last_backward")],
)  # fmt: skip
def test_accumulation_digest(update: str, call: str, four_ranks: str, tmp_path: Path) -> None:
    """I3. Goal: 4 micro-batches on 1 rank are 1 micro-batch on each of 4 ranks, bit for bit; also
    where gradients stay on the worker, with a quarter of the traffic."""
    everywhere = on_one_rank(tmp_path / "node")
    kept = on_one_rank(
        tmp_path / "worker", lambda model, is_last: getattr(model, call)(is_last), update
    )
    assert kept.digest == everywhere.digest == four_ranks
    assert 4 * kept.results[0] == everywhere.results[0]


def test_accumulation_digest_of_one_unit_only(four_ranks: str, tmp_path: Path) -> None:
    """Goal: with `recurse=False` one unit keeps its gradients and the others push theirs."""

    def before(model: Any, is_last: bool) -> None:
        model.blocks[0].set_requires_gradient_sync(is_last, recurse=False)

    assert on_one_rank(tmp_path, before).digest == four_ranks


# ---------------------------------------------------------------------------- unequal batches

COUNTS = [(8, 4), (4, 8), (8, 0)]
"""Samples of both ranks, by step."""


def uneven(rank: int, step: int) -> Tensor:
    return batch(step, rank, 0)[: COUNTS[step][rank]]


@pytest.mark.feature("uneven batches by weight")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_uneven_batches_count_by_weight(update: str, tmp_path: Path) -> None:
    """Goal: with sums and weights every sample counts the same; a rank may have none."""

    def work(rank: int) -> None:
        model = sharded(make)
        optimizer = luwu.optim.SGD(model.parameters(), lr=1e-2, update=update)
        for step in range(STEPS):
            x = uneven(rank, step)
            luwu.set_gradient_weight(len(x))
            if len(x):
                model(x).square().sum().backward()
            else:
                luwu.empty_backward()
            optimizer.step()

    model = make()
    plain = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    for step in range(STEPS):
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for rank in range(2):
            if len(uneven(rank, step)):
                model.zero_grad()
                model(uneven(rank, step)).square().sum().backward()
                for total, p in zip(sums, model.parameters(), strict=True):
                    assert p.grad is not None
                    total.add_(p.grad)
        for total, p in zip(sums, model.parameters(), strict=True):
            p.grad = total / sum(COUNTS[step])
        plain.step()
    found = in_cluster(tmp_path, work, world_size=2).digest
    assert found == digest_of(dict(model.named_parameters()))


@pytest.mark.feature("set_gradient_divide_factor")
def test_divide_factor(tmp_path: Path) -> None:
    """Goal: the factor takes the place of the number of ranks, for the unit it was set on."""

    def digest(factor: float, lr: float) -> str:
        def work(rank: int) -> None:
            model = sharded(make)
            for module in (model, *model.blocks):
                module.set_gradient_divide_factor(factor)
            optimizer = luwu.optim.SGD(model.parameters(), lr=lr)
            train_steps(model, optimizer, 0, STEPS, rank)

        return in_cluster(tmp_path, work, world_size=2).digest

    assert digest(8.0, 4e-2) == digest(2.0, 1e-2)


def test_weights_that_cannot_be(tmp_path: Path) -> None:
    """Goal: what would give a wrong mean is refused where it is said."""

    def work(rank: int) -> None:
        model = sharded(make)
        optimizer = luwu.optim.SGD(model.parameters(), lr=1e-2)
        for weight in (-1.0, float("nan"), float("inf")):
            with pytest.raises(luwu.ConfigError, match="0 or more"):
                luwu.set_gradient_weight(weight)
        square_loss(model, 0, 0, 0).backward()
        with pytest.raises(luwu.StepOrderError, match="middle of step 0"):
            luwu.set_gradient_weight(2)
        with pytest.raises(luwu.StepOrderError, match="middle of step 0"):
            model.set_gradient_divide_factor(2.0)
        optimizer.step()
        with pytest.raises(luwu.StepOrderError, match=r"luwu\.empty_backward"):
            optimizer.step()
        for factor in (0.0, -1.0, float("inf")):
            with pytest.raises(luwu.ConfigError, match="above 0"):
                model.set_gradient_divide_factor(factor)
        model.set_gradient_divide_factor(2.0)
        with pytest.raises(luwu.ConfigError, match="use one of them"):
            luwu.set_gradient_weight(2)

    in_cluster(tmp_path, work)


def test_a_rank_without_samples_waits_for_verdicts(tmp_path: Path) -> None:
    """I1, I3. Goal: a rank that has no samples for several steps, and so pulls nothing, neither
    waits for repetitions nor for ever after a step that was skipped. (It did both.)"""

    def work(rank: int) -> tuple[list[bool], int]:
        model = sharded(make)
        optimizer = luwu.optim.SGD(model.parameters(), lr=1e-2)
        results = []
        for step in range(6):
            if rank == 0:
                loss = square_loss(model, step, 0, 0)
                (loss * math.inf if step == 2 else loss).backward()
            else:
                luwu.empty_backward()
            results.append(optimizer.step())
        applied = [result.applied for result in results]
        nic: Any = luwu.session().nic
        return applied, nic._core.uplink.repeated_count

    found = in_cluster(tmp_path, work, world_size=2).results
    assert found == [([True, True, False, True, True, True], 0)] * 2


def test_no_weight_at_all_skips_the_step(tmp_path: Path) -> None:
    """Goal: where no rank has a sample there is no mean: the step is skipped and says so."""

    def work(rank: int) -> bool:
        model = sharded(make)
        optimizer = luwu.optim.SGD(model.parameters(), lr=1e-2)
        luwu.set_gradient_weight(0)
        luwu.empty_backward()
        return optimizer.step().applied

    assert in_cluster(tmp_path, work, world_size=2).results == [False, False]


def test_kept_gradients_are_not_forgotten(tmp_path: Path) -> None:
    """Goal: step() refuses while gradients wait here; zero_grad() drops them, and only them."""

    def digest(keeps: bool) -> str:
        def work(rank: int) -> None:
            model = sharded(make)
            optimizer = luwu.optim.SGD(model.parameters(), lr=1e-2)
            if keeps:
                model.set_requires_gradient_sync(False)
                square_loss(model, 9, 9, 0).backward()
                with pytest.raises(luwu.StepOrderError, match="keeps gradients that were not pu"):
                    optimizer.step()
                optimizer.zero_grad()
                model.set_requires_gradient_sync(True)
            square_loss(model, 0, 0, 0).backward()
            optimizer.step()

        return in_cluster(tmp_path, work).digest

    assert digest(keeps=True) == digest(keeps=False)


def test_streaming_pushes_all_units_in_one_backward(tmp_path: Path) -> None:
    """Goal: some units kept and some pushed cannot be honoured by streaming, so it is refused."""

    def work(rank: int) -> None:
        model = sharded(make)
        luwu.optim.SGD(model.parameters(), lr=1e-2, update="streaming")
        model.blocks[0].set_requires_gradient_sync(False)
        with pytest.raises(luwu.StepOrderError, match="on some units only"):
            square_loss(model, 0, 0, 0).backward()

    in_cluster(tmp_path, work)
