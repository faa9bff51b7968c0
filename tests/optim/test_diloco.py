"""luwu.DiLoCo: local steps, and rounds in which the network averages them."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import luwu
from luwu.base.errors import StepAborted
from luwu.checkpoint.export_state import ExportOptions, export_state
from luwu.checkpoint.source import RestingState
from luwu.training.steps.result import StepResult
from tests.helpers.real_training import digest_of, in_cluster, seeded, train_steps
from tests.helpers.small_models import Block, Stack, TiedStack

RANKS, EVERY, ROUNDS = 2, 3, 4


def local_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-3)


def local_steps(
    model: Any, outer: luwu.DiLoCo, optimizer: torch.optim.Optimizer, rank: int, first: int = 0,
    last: int = ROUNDS * EVERY,
) -> None:  # fmt: skip
    for step in range(first, last):
        train_steps(model, optimizer, step, step + 1, rank)
        outer.step()


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@functools.cache
def by_hand(make: Any, rounds: int = ROUNDS, resumed_at: int = -1) -> dict[str, Tensor]:
    """The same in plain torch: all workers in this process. `resumed_at`: before this round the
    local optimizers are made anew."""
    models = [seeded(make) for _ in range(RANKS)]
    optimizers = [local_optimizer(model) for model in models]
    start = seeded(make)
    trained = [p for p in start.parameters() if p.requires_grad]
    outer = torch.optim.SGD(trained, lr=0.7, momentum=0.9, nesterov=True, fused=True)
    for step in range(rounds * EVERY):
        if step == resumed_at * EVERY:
            optimizers = [local_optimizer(model) for model in models]
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            train_steps(model, optimizer, step, step + 1, rank)
        if (step + 1) % EVERY:
            continue
        with torch.no_grad():
            locals_of = [[p for p in m.parameters() if p.requires_grad] for m in models]
            for p, *moved in zip(trained, *locals_of, strict=True):
                p.grad = sum(p - each for each in moved) / RANKS
            outer.step()
            for moved in locals_of:
                for p, now in zip(moved, trained, strict=True):
                    p.copy_(now)
    return parameters_of(start)


@pytest.mark.feature("DiLoCo")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize("make", [Stack, TiedStack])
def test_rounds_are_those_of_plain_torch(make: Any, update: str, tmp_path: Path) -> None:
    """I3. Goal: bit for bit, with tied and frozen parameters, and whatever makes the first weights;
    the worker has the network's weights after a round. Method: two workers."""

    def work(rank: int) -> None:
        model = seeded(make, seed=7 + rank)  # those of rank 0 count
        optimizer = local_optimizer(model)
        outer = luwu.DiLoCo(
            model, Block, every=EVERY,
            optimizer=lambda parameters: luwu.optim.SGD(
                [p for p in parameters if p.requires_grad],
                lr=0.7, momentum=0.9, nesterov=True, update=update,
            ),
        )  # fmt: skip
        for step in range(ROUNDS * EVERY):
            train_steps(model, optimizer, step, step + 1, rank)
            assert outer.step() == ((step + 1) % EVERY == 0)
            assert outer.round == (step + 1) // EVERY
        expected = by_hand(make)
        assert digest_of(parameters_of(model)) == digest_of(expected)

    trained = in_cluster(tmp_path, work, world_size=RANKS)
    assert trained.digest == digest_of(by_hand(make))


@pytest.mark.feature("DiLoCo")
def test_a_lost_round_is_sent_again(tmp_path: Path) -> None:
    """I1, I2, I3. Goal: a round whose attempt is aborted before or after its differences are sent
    ends with the same bits. Method: rank 1 cancels the attempt, in two rounds."""

    def work(rank: int) -> None:
        model = seeded(Stack)
        optimizer = local_optimizer(model)
        outer = luwu.DiLoCo(model, Block, every=EVERY)
        nic: Any = luwu.session().nic
        push = nic.push
        cancelled: list[int] = []

        def push_and_cancel(*arguments: Any, **more: Any) -> Any:
            handle = push(*arguments, **more)
            if outer.round == 2 and not cancelled:
                cancelled.append(outer.round)
                nic.cancel("a test")
            return handle

        if rank == 1:
            nic.push = push_and_cancel
        for step in range(ROUNDS * EVERY):
            train_steps(model, optimizer, step, step + 1, rank)
            if rank == 1 and step == EVERY - 1:
                nic.cancel("a test")
            outer.step()
        assert nic.counters.aborts_count >= 2
        assert digest_of(parameters_of(model)) == digest_of(by_hand(Stack))

    in_cluster(tmp_path, work, world_size=RANKS)


@pytest.mark.feature("DiLoCo")
@pytest.mark.parametrize("back_to", [2, 0])
def test_an_attempt_that_is_lost_after_a_decision(
    back_to: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I3. Goal: an attempt that is lost once the round is decided costs nothing: the
    differences count once. Where older rounds are lost, a script that goes on after StepAborted
    averages from the network's weights, not from a half-made difference.
    Method: the error is raised right after the decision of one round."""
    wait = StepResult.wait

    def wait_and_lose(result: StepResult) -> None:
        wait(result)
        if result.number == 1:
            raise StepAborted(back_to, "a test")

    monkeypatch.setattr(StepResult, "wait", wait_and_lose)

    def work(rank: int) -> None:
        model = seeded(Stack)
        optimizer = local_optimizer(model)
        outer = luwu.DiLoCo(model, Block, every=EVERY)
        last = 2 * EVERY - 1
        local_steps(model, outer, optimizer, rank, 0, last)
        train_steps(model, optimizer, last, last + 1, rank)
        with nullcontext() if back_to else pytest.raises(StepAborted):
            outer.step()
        local_steps(model, outer, optimizer, rank, last + 1)
        assert outer.round == ROUNDS
        assert digest_of(parameters_of(model)) == digest_of(by_hand(Stack))

    in_cluster(tmp_path, work, world_size=RANKS)


@pytest.mark.feature("DiLoCo")
def test_a_state_is_resumed_read_and_exported(tmp_path: Path) -> None:
    """Goal: what is in the network is that of the last round, under the model's own names; a job
    that resumes it begins a round with it, with the momentum that was kept."""
    state = tmp_path / "state"

    def work(rank: int) -> None:
        model = seeded(Stack)
        optimizer = local_optimizer(model)
        outer = luwu.DiLoCo(model, Block, every=EVERY)
        first = outer.round * EVERY
        if first:
            assert digest_of(parameters_of(model)) == digest_of(by_hand(Stack, 2))
        local_steps(model, outer, optimizer, rank, first, first + 2 * EVERY)
        expected = by_hand(Stack, 4, resumed_at=2) if first else by_hand(Stack, 2)
        assert digest_of(parameters_of(model)) == digest_of(expected)

    in_cluster(tmp_path / "a", work, world_size=RANKS, state=state)
    with RestingState(state) as source:
        exported = export_state(source, tmp_path / "out", ExportOptions())
    assert (exported.step, exported.weights_digest) == (2, digest_of(by_hand(Stack, 2)))
    in_cluster(tmp_path / "b", work, world_size=RANKS, state=state, resume=True)


@pytest.mark.feature("DiLoCo")
def test_a_difference_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    """Goal: where one worker's weights are not finite, all go on from the round's start."""

    def work(rank: int) -> None:
        model = seeded(Stack)
        outer = luwu.DiLoCo(model, Block, every=1)
        before = parameters_of(model)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1.0 if rank else float("inf"))
        assert not outer.end_round().applied
        assert digest_of(parameters_of(model)) == digest_of(before)

    in_cluster(tmp_path, work, world_size=RANKS)


@pytest.mark.feature("DiLoCo")
def test_what_cannot_be_averaged_is_refused(tmp_path: Path) -> None:
    """Goal: a number of steps, a model or an optimizer that cannot work is refused in words."""

    def work(_: int) -> None:
        with pytest.raises(luwu.ConfigError, match="every must be a whole number"):
            luwu.DiLoCo(seeded(Stack), every=0)
        with pytest.raises(luwu.ConfigError, match="no module of Bilinear"):
            luwu.DiLoCo(seeded(Stack), nn.Bilinear, every=1)
        model = seeded(Stack)
        luwu.fully_shard(model)
        with pytest.raises(luwu.ConfigError, match=r"fully_shard was called on this Stack"):
            luwu.DiLoCo(model, every=1)
        luwu.optim.SGD(model.parameters(), lr=0.1)

    in_cluster(tmp_path / "a", work)

    def refused(optimizer: Any, message: str) -> None:
        def of_rank(_: int) -> None:
            with pytest.raises(luwu.ConfigError, match=message):
                luwu.DiLoCo(seeded(Stack), every=1, optimizer=optimizer)
            raise RuntimeError("over")  # the model that it sharded has no optimizer

        with pytest.raises(RuntimeError, match="over"):
            in_cluster(tmp_path / "b", of_rank)

    refused(lambda p: luwu.optim.SGD([*p][:2], lr=1.0), "is in no group of the optimizer")
    refused(lambda p: torch.optim.SGD(p, lr=1.0), r"outer optimizer.*one of luwu\.optim")
