"""Steps: what each order of work allows, lost attempts, and what a step returns."""

from __future__ import annotations

import functools
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import luwu
from luwu.base.errors import StepAborted
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import digest_of, in_cluster, seeded, sharded
from tests.helpers.small_models import Stack, compare, make_stack, shard, square_loss
from tests.helpers.training_harness import assert_same_bits, reference, run_ranks, train, worker

STEPS = 5


def small(**arguments: Any) -> tuple[nn.Module, Any]:
    model = sharded(lambda: Stack(blocks=2))
    return model, luwu.optim.AdamW(model.parameters(), **arguments)


def backward(model: nn.Module, step: int = 0) -> None:
    square_loss(model, step, 0, 0).backward()


# -------------------------------------------------------------------------- order of work


def test_streaming_refuses_what_it_cannot_honour() -> None:
    """Goal: never a wrong number: each is an error that says what to do."""
    with worker(FakeNetwork(1)):
        model, optimizer = small(update="streaming")
        with pytest.raises(luwu.StepOrderError, match="without a backward"):
            optimizer.step()
        with pytest.raises(luwu.StepOrderError, match="clip_grad_norm_"):
            luwu.clip_grad_norm_(model.parameters(), 1.0)
        backward(model)
        with pytest.raises(luwu.StepOrderError, match="pulled again in step 0"):
            model(torch.ones(1, 64))
        optimizer.param_groups[0]["lr"] = 0.5
        with pytest.raises(luwu.StepOrderError, match="hyper-parameters of step 0 were changed"):
            optimizer.step()
        optimizer.param_groups[0]["lr"] = 1e-3
        assert optimizer.step().applied


def test_streaming_refuses_a_second_backward() -> None:
    """Goal: gradients that are applied already cannot be added to."""
    with worker(FakeNetwork(1)):
        model, optimizer = small(update="streaming")
        one, other = (square_loss(model, step, 0, 0) for step in (0, 1))
        one.backward()
        with pytest.raises(luwu.StepOrderError, match="has had a backward"):
            other.backward()
        assert optimizer.step().applied


@pytest.mark.feature("hyper-parameters changed by hand")
def test_hyper_parameters_of_streaming_count_from_the_backward() -> None:
    """Goal: a change before the first backward is taken, as a scheduler makes it."""
    network = FakeNetwork(1)
    with worker(network):
        model, optimizer = small(update="streaming")
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.param_groups[0]["weight_decay"] = 0.0
        model.unshard()  # the first weights go to the network
        before = network.masters()
        backward(model)
        optimizer.step()
        assert_same_bits(network.masters(), before)


def test_graph_of_an_older_step_is_refused() -> None:
    """Goal: a backward with newer weights than its forward had would be wrong."""
    with worker(FakeNetwork(1)):
        model, optimizer = small()
        old = square_loss(model, 0, 0, 0)
        backward(model)
        optimizer.step()
        with pytest.raises(luwu.StepOrderError, match=r"forward of step 0 .* step 1"):
            old.backward()


@pytest.mark.feature("eval() and no_grad")
def test_evaluation_between_steps() -> None:
    """Goal: eval and no_grad only pull; the step after is the same."""

    def loss(model: nn.Module, step: int, rank: int, part: int) -> Tensor:
        for training in (False, True):
            model.train(training)
            with torch.no_grad():
                square_loss(model, 99, rank, part)
        return square_loss(model, step, rank, part)

    compare(loss=loss, update="streaming")


# -------------------------------------------------------------------------- lost attempts

LOST = [
    {"verb": "pull", "rank": 0, "step": 2, "unit": 0},
    {"verb": "pull", "rank": 1, "step": 2, "unit": 3},
    {"verb": "push", "rank": 0, "step": 1, "unit": 4},
    {"verb": "push", "rank": 1, "step": 3, "unit": 0},
    {"verb": "commit", "step": 0},
    {"verb": "commit", "step": 4},
]


def train_through(network: FakeNetwork, update: str, **arguments: Any) -> list[list[float]]:
    return train(
        network,
        make_stack,
        shard,
        lambda model: luwu.optim.AdamW(model.parameters(), lr=1e-2, update=update),
        square_loss,
        steps=STEPS,
        **arguments,
    )


@functools.cache
def calm(update: str) -> tuple[dict[str, Tensor], list[list[float]]]:
    network = FakeNetwork(2)
    losses = train_through(network, update)
    return network.masters(), losses


@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("lost", [*LOST, *[None]], ids=str)
def test_replay_gives_the_same_bits(update: str, eager: bool, lost: dict[str, Any] | None) -> None:
    """I3. Goal: weights and losses do not depend on attempts that were lost.
    Method: lose one (the last case: all of them) and compare with a calm run."""
    network = FakeNetwork(2, eager=eager)
    losses_lost = LOST if lost is None else [lost]
    for each in losses_lost:
        network.fail_at(**each)
    losses = train_through(network, update)
    expected, expected_losses = calm(update)
    assert network.attempt == len(losses_lost)
    assert_same_bits(network.masters(), expected)
    assert losses == expected_losses


def test_nothing_is_left_after_an_abort() -> None:
    """Goal: after StepAborted no weights are held, placeholders are back, and the loop goes on."""
    network = FakeNetwork(1)
    with worker(network) as session:
        model, optimizer = small()
        backward(model)
        optimizer.step()
        network.fail_at("push", unit=1)
        with pytest.raises(StepAborted) as caught:
            backward(model)
        assert (caught.value.step, optimizer.next_step, session.step) == (1, 1, 1)
        assert session.pulls.bytes_count.now == 0
        assert all(type(p).__name__ == "Placeholder" for p in model.parameters())
        old = square_loss(model, 1, 0, 0)
        with network.changed:
            network.abort()
        with pytest.raises(StepAborted):
            model(torch.ones(1, 64))
        with pytest.raises(luwu.StepOrderError, match="attempt"):
            old.backward()  # its weights were freed
        optimizer.zero_grad()
        backward(model)
        assert optimizer.step().number == 1


@pytest.mark.parametrize("place", [0, 1, 2, None])
def test_zero_grad_elsewhere_does_nothing(place: int | None) -> None:
    """Goal: in its usual places it disturbs no step. A script without it is warned, once: torch
    would add up the gradients of all steps."""
    network = FakeNetwork(1)
    with worker(network), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        model, optimizer = small()
        clears = [optimizer.zero_grad if at == place else int for at in range(3)]
        for step in range(4):
            clears[0]()
            loss = square_loss(model, step, 0, 0)
            clears[1]()
            loss.backward()
            optimizer.step()
            clears[2]()
    assert network.attempt == 0
    assert [__file__] * (place is None) == [each.filename for each in said]


def test_error_in_backward_must_be_cleared() -> None:
    """Goal: after a backward that ended with an error, what was pushed is not taken for whole."""
    with worker(FakeNetwork(1)):
        model, optimizer = small()

        def fail(grad: Tensor) -> None:
            raise ArithmeticError("from a hook")

        hook = model.blocks[0].register_forward_hook(
            lambda module, args, output: output.register_hook(fail) and None
        )
        with pytest.raises(ArithmeticError):
            backward(model)
        hook.remove()
        with pytest.raises(luwu.LuwuError, match="ended with an error"):
            backward(model)
        with pytest.raises(luwu.LuwuError, match="ended with an error"):
            optimizer.step()
        optimizer.zero_grad()
        with pytest.raises(StepAborted):
            backward(model)
        backward(model)
        assert optimizer.step().number == 0


@pytest.mark.feature("step(closure)")
def test_closure_replays_by_itself() -> None:
    """Goal: step(closure) returns when decided, whatever happened in between."""
    network = FakeNetwork(2)
    network.fail_at("push", rank=0, step=1, unit=2)
    network.fail_at("commit", step=2)

    def work(rank: int) -> list[float]:
        losses = []
        with worker(network, rank):
            model = MODELS[rank]
            shard(model)
            optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2)
            for step in range(STEPS):

                def closure(step: int = step) -> Tensor:
                    optimizer.zero_grad()
                    loss = square_loss(model, step, rank, 0)
                    loss.backward()
                    return loss

                result = optimizer.step(closure)
                assert (result.number, result.applied) == (step, True)
                losses.append(result.loss.item())
        return losses

    MODELS = [make_stack(), make_stack()]
    losses = run_ranks(2, work)
    expected, expected_losses = calm("at_step")
    assert network.attempt == 2
    assert losses == expected_losses
    assert_same_bits(network.masters(), expected)


def test_finish_waits_for_the_last_step() -> None:
    """Goal: finish raises if the last step was lost, and can be called again after the replay."""
    network = FakeNetwork(1)
    network.fail_at("commit", step=0)
    with worker(network) as session:
        model, optimizer = small()
        backward(model)
        with pytest.raises(StepAborted):
            optimizer.step()
            luwu.finish()
        backward(model)
        optimizer.step()
        luwu.finish()
        assert session.is_finished
        assert network.left == {0}
        with pytest.raises(luwu.LuwuError, match="finish"):
            model(torch.ones(1, 64))


def test_result_of_a_lost_step_is_not_read() -> None:
    """Goal: reading what will never be known says so, and does not disturb the replay."""
    network = FakeNetwork(1)
    network.fail_at("push", step=1)
    with worker(network):
        model, optimizer = small()
        backward(model)
        first = optimizer.step()
        with pytest.raises(StepAborted):
            backward(model)
        assert first.applied  # decided before the abort
        backward(model)
        network.fail_at("commit", step=1)
        clipped = luwu.clip_grad_norm_(model.parameters(), 1.0)
        with pytest.raises(StepAborted):
            optimizer.step()
        with pytest.raises(luwu.StepOrderError, match="dropped"):
            float(clipped)
        backward(model)
        second = optimizer.step()
        with network.changed:  # a second one, as if its verdict had not come
            network.step, _ = 1, network.outcomes.pop(1)
            network.abort()
        with pytest.raises(StepAborted):
            backward(model)
        with pytest.raises(luwu.StepOrderError, match="step 1 was lost"):
            second.grad_norm  # noqa: B018
        backward(model)
        assert optimizer.step().number == 1


def test_step_returns_when_only_the_next_one_was_lost() -> None:
    """I3. Goal: `step()` of a decided step returns, so that a loop which notes its loss after it
    misses none. Method: lose attempts at the pulls for steps 1 and 3, which step() requests."""
    network = FakeNetwork(1)
    network.fail_at("pull", step=1)
    network.fail_at("pull", step=3, unit=1)
    with worker(network):
        model, optimizer = small()
        for step in range(5):
            backward(model)
            assert optimizer.step().number == step
        assert network.attempt == 2


def test_closure_of_a_decided_step_is_not_repeated() -> None:
    """Goal: an abort that only touches the next step's prefetch costs the closure nothing."""
    network = FakeNetwork(1)
    network.fail_at("pull", step=1)
    with worker(network):
        model, optimizer = small()
        calls = []

        def closure() -> None:
            calls.append(1)
            backward(model)

        optimizer.step(closure)
        result = optimizer.step(closure)
        assert (result.number, network.attempt, len(calls)) == (1, 1, 2)
        network.fail_at("pull", step=3)
        assert optimizer.step(closure).number == 2  # decided before its prefetch was lost
        assert (optimizer.next_step, network.attempt, len(calls)) == (3, 2, 3)


@pytest.mark.feature("optimizer.skip_step()")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize("has_switch", [True, False])
def test_one_rank_leaves_a_step_out(update: str, has_switch: bool, tmp_path: Path) -> None:
    """I2, I4. Goal: a step that one rank skips after its backward (a loss spike) changes nothing on
    any rank, says so, and is no lost step; the steps after it go on as torch does without it."""

    def work(rank: int) -> list[tuple[bool, bool]]:
        model = sharded(make_stack)
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1, update=update)
        results = []
        for step in range(4):
            square_loss(model, step, rank, 0).backward()
            is_spike = (step, rank) in ((1, 1), (2, 0))
            results.append(optimizer.skip_step() if is_spike else optimizer.step())
            optimizer.zero_grad()
        return [(result.applied, math.isfinite(result.grad_norm)) for result in results]

    found = in_cluster(tmp_path, work, world_size=2, has_switch=has_switch)
    expected = [(True, True), (False, True), (False, True), (True, True)]
    assert found.results == [expected, expected]

    plain = reference(
        lambda: seeded(make_stack), lambda m: torch.optim.SGD(m.parameters(), lr=0.1, fused=True),
        lambda model, step, *of: square_loss(model, (0, 3)[step], *of), world_size=2, steps=2,
    )  # fmt: skip
    assert found.digest == digest_of(plain)


def test_a_step_that_zero_grad_drops_names_skip_step(tmp_path: Path) -> None:
    """Goal: who leaves a step out by zero_grad(), which loses it on all ranks, reads of
    skip_step()."""

    def work(rank: int) -> None:
        model, optimizer = small()
        square_loss(model, 0, 0, 0).backward()
        with pytest.raises(luwu.StepAborted, match=r"call skip_step\(\) of the optimizer"):
            optimizer.zero_grad()
            square_loss(model, 0, 0, 0).backward()
            optimizer.step().wait()

    in_cluster(tmp_path, work)
