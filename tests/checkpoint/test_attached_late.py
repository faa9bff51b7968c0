"""What is attached late goes with a step as the next training begins, whatever runs between."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import luwu
from tests.checkpoint.test_attached import SCHEDULERS
from tests.helpers.real_training import digest_of, in_cluster, seeded
from tests.helpers.small_models import Block

KINDS = ("train", "train", "schedule", "schedule", "evaluate", "save", "one waits", "wait", "draw")


class Batches:
    """A cursor over the data, which is drawn from before the next forward."""

    def __init__(self) -> None:
        self.position = {"index": 0}

    def draw(self) -> torch.Tensor:
        self.position["index"] += 1
        return torch.full((8, 64), 1.0 + self.position["index"])


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    return loss


def play(
    model: nn.Module, optimizer: Any, scheduler: Any, batches: Batches, events: Sequence[str],
    seen: list[float], chosen: int = 0,
) -> None:  # fmt: skip
    """The events of a script; with a luwu model, or torch's. The rates of all steps to `seen`;
    `chosen`: the rank that waits alone."""
    is_torch = isinstance(optimizer, torch.optim.SGD) and not hasattr(optimizer, "next_step")
    drawn, result = None, None
    for event in events:
        if event == "train":
            x, drawn = batches.draw() if drawn is None else drawn, None
            loss_of(model, x).backward()
            seen.append(float(optimizer.param_groups[0]["lr"]))
            result = optimizer.step()
            optimizer.zero_grad()
        elif event == "draw":
            drawn = batches.draw() if drawn is None else drawn
        elif event == "schedule":
            is_plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
            scheduler.step(*([1.0] if is_plateau else []))
        elif event == "evaluate":
            with torch.no_grad():
                model(torch.ones(8, 64))
        elif not is_torch and event == "save":
            luwu.get_model_state_dict(model)
        elif not is_torch and result is not None:
            waits = event == "wait" or (event == "one waits" and luwu.rank() == chosen)
            if waits:
                result.wait()


@pytest.mark.feature("learning rate schedulers")
@pytest.mark.parametrize("name", sorted(SCHEDULERS))
@pytest.mark.parametrize("seed", [0])
def test_any_order_of_a_loop_resumes_as_torch_does(name: str, seed: int, tmp_path: Path) -> None:
    """I4. Goal: rates and weights over two stops are those of a script of plain torch that saves
    model, optimizer, scheduler and position at the same points.
    Method: random orders of train, schedule, evaluate, save, wait, and draw a batch."""
    chosen = random.Random(f"order {seed} of {name}")
    events = ["train", *chosen.choices(KINDS, k=14)]
    cuts = sorted(chosen.sample(range(1, 15), 2))
    update, alone = chosen.choice(("at_step", "streaming")), chosen.randrange(2)

    def part(events: Sequence[str]) -> Any:
        def work(rank: int) -> list[float]:
            model = seeded(lambda: nn.Sequential(Block()))
            luwu.fully_shard(model)
            optimizer = luwu.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, update=update)
            scheduler, batches, seen = SCHEDULERS[name](optimizer), Batches(), []
            luwu.attach("scheduler", scheduler)
            luwu.attach("position", batches.position)
            play(model, optimizer, scheduler, batches, events, seen, alone)
            return seen

        return work

    found: list[float] = []
    digest = ""
    parts = [events[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
    for number, each in enumerate(parts):
        done = in_cluster(
            tmp_path, part(each), world_size=2, state=tmp_path / "state", resume=number > 0
        )
        assert done.results[0] == done.results[1]
        found, digest = found + done.results[0], done.digest
    model = seeded(lambda: nn.Sequential(Block()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, fused=True)
    scheduler, batches, expected = SCHEDULERS[name](optimizer), Batches(), list[float]()
    for each in parts:  # a batch that is drawn and not used is drawn again
        used = batches.position["index"]
        play(model, optimizer, scheduler, batches, each, expected)
        batches.position["index"] = used + each.count("train")
    assert found == expected, f"{parts}"
    assert digest == digest_of(dict(model.named_parameters())), f"{parts}"


def trained(
    world: Callable[[Any, Any, nn.Module], Any], join: Callable[[], object] = bool, **options: Any
) -> Callable[[int], Any]:
    """A script that makes a step of rate 1.0 and then does this, with the scheduler halving it."""

    def work(rank: int) -> Any:
        model = seeded(lambda: nn.Sequential(Block(), Block()))
        for block in model:
            luwu.fully_shard(block)
        luwu.fully_shard(model)
        optimizer = luwu.optim.SGD(model.parameters(), lr=1.0, **options)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        join()
        luwu.attach("scheduler", scheduler)
        if optimizer.next_step == 0:
            loss_of(model, torch.ones(8, 64)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return world(optimizer, scheduler, model)

    return work


def rate_of(optimizer: Any, scheduler: Any, model: nn.Module) -> float:
    rate: float = optimizer.param_groups[0]["lr"]
    return rate


def train_in_eval(model: nn.Module) -> None:
    loss_of(model.eval(), torch.ones(8, 64)).backward()


def train_reentrant(model: nn.Module) -> None:
    """No forward of a sharded module but those of the checkpoint, which are without gradients."""
    block, _ = model
    x = torch.ones(8, 64, requires_grad=True)
    checkpoint(block, x, use_reentrant=True).sum().backward()


def train_without_samples(model: nn.Module) -> None:
    luwu.empty_backward()


def train_behind_evaluation(model: nn.Module) -> None:
    with torch.no_grad():
        model.eval()(torch.ones(8, 64))
    loss_of(model.train(), torch.ones(8, 64)).backward()


@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize(
    "train", [train_in_eval, train_reentrant, train_without_samples, train_behind_evaluation]
)
def test_a_lost_step_goes_back_to_the_state_as_its_training_began(
    train: Callable[[nn.Module], None], update: str, tmp_path: Path
) -> None:
    """Goal: whichever way a step is trained, what is attached late is final as that begins.
    Method: the rate is changed before and after; then the step is lost."""
    meet = threading.Barrier(2)

    def world(optimizer: Any, scheduler: Any, model: nn.Module) -> list[float]:
        found = []
        scheduler.step()
        train(model)
        scheduler.step()
        found.append(rate_of(optimizer, scheduler, model))
        luwu.session().results.last.wait()
        meet.wait(60)
        with pytest.raises(luwu.StepAborted) as caught:
            optimizer.zero_grad()
            luwu.session().results.last.wait()
            loss_of(model, torch.ones(8, 64)).backward()
        assert caught.value.step == 1
        found.append(rate_of(optimizer, scheduler, model))
        return found

    done = in_cluster(tmp_path, trained(world, update=update), world_size=2)
    assert done.results == [[0.25, 0.5]] * 2


def test_what_was_waited_for_is_lost_with_its_replacement(tmp_path: Path) -> None:
    """Goal: a step that was waited for is decided with the state of then, as a resumed run would
    find it, until the next training begins, or it is waited for again; another rank may be ahead.
    Method: look at the network as a reader; the attempt is lost before, and after."""
    meet = threading.Barrier(2)

    def world(optimizer: Any, scheduler: Any, model: nn.Module) -> list[float]:
        found: list[float] = []

        def lose(*, is_ahead: bool) -> None:
            """All lose the attempt; the first rank is ahead of the other."""
            if is_ahead and luwu.rank() == 0:
                loss_of(model, torch.ones(8, 64))
            meet.wait(60)
            if luwu.rank() == 0:
                luwu.session().nic.cancel("the test loses this step")
            with pytest.raises(luwu.StepAborted) as caught, luwu.session().attempt:
                never = luwu.session().nic.pull(9, 0, 0, lambda: memoryview(b""))
                luwu.session().nic.wait(never)
            assert caught.value.step == 1
            found.append(rate_of(optimizer, scheduler, model))
            meet.wait(60)

        luwu.session().results.last.wait()
        scheduler.step()
        lose(is_ahead=False)
        scheduler.step()
        lose(is_ahead=True)
        scheduler.step()
        luwu.session().results.last.wait()
        scheduler.step()
        return found

    state = tmp_path / "state"
    done = in_cluster(tmp_path, trained(world), world_size=2, state=state)
    assert done.results == [[1.0, 0.5]] * 2
    again = in_cluster(tmp_path, trained(rate_of), world_size=2, state=state, resume=True)
    assert again.results == [0.125] * 2


def test_one_rank_may_wait_while_others_evaluate(tmp_path: Path) -> None:
    """I6. Goal: the first rank saves alone, and all meet after an evaluation: none waits for ever.
    The scheduler makes its step behind that, and a resumed run finds it made."""
    meet = threading.Barrier(2)

    def world(optimizer: Any, scheduler: Any, model: nn.Module) -> None:
        if luwu.rank() == 0:
            luwu.get_model_state_dict(model)
        with torch.no_grad():
            model(torch.ones(8, 64))
        meet.wait(60)
        luwu.get_model_state_dict(model)
        meet.wait(60)
        scheduler.step()

    state = tmp_path / "state"
    in_cluster(tmp_path, trained(world), world_size=2, state=state)
    again = in_cluster(tmp_path, trained(rate_of), world_size=2, state=state, resume=True)
    assert again.results == [0.5] * 2


def test_a_rank_may_attach_after_another_went_on(tmp_path: Path) -> None:
    """I4. Goal: all resume with the state that was kept as their attempt began.
    Method: the first rank makes a step of its scheduler and waits before the other attaches."""
    meet = threading.Barrier(2)

    def join() -> None:
        if luwu.session().is_resumed and luwu.rank() == 1:
            meet.wait(60)

    def world(optimizer: Any, scheduler: Any, model: nn.Module) -> float:
        scheduler.step()
        if luwu.rank() == 0:
            luwu.session().attend()
            meet.wait(60)
        return rate_of(optimizer, scheduler, model)

    options: dict[str, Any] = {"world_size": 2, "state": tmp_path / "state"}
    in_cluster(tmp_path, trained(rate_of), **options)
    for rate in (0.5, 0.25):
        done = in_cluster(tmp_path, trained(world, join), resume=True, **options)
        assert done.results == [rate] * 2


@pytest.mark.parametrize("transport", ["shm", "tcp", "ipc"])
def test_owners_of_a_page_replace_alike(transport: str, tmp_path: Path) -> None:
    """I2. Goal: with several optimizer nodes all that keep what is attached replace it; the file
    goes with its version."""

    def first(optimizer: Any, scheduler: Any, model: nn.Module) -> None:
        luwu.session().results.last.wait()
        scheduler.step()

    def more(optimizer: Any, scheduler: Any, model: nn.Module) -> None:
        for _ in range(2):
            loss_of(model, torch.ones(8, 64)).backward()
            optimizer.step().wait()
            scheduler.step()

    options: dict[str, Any] = {
        "world_size": 2, "optimizer_nodes": 2, "replicas": 2, "transport": transport,
        "state": tmp_path / "state",
    }  # fmt: skip
    names = []
    for number, world in enumerate((first, more, rate_of)):
        done = in_cluster(tmp_path, trained(world), resume=number > 0, **options)
        names.append([
            sorted(path.name.partition("-")[2] for path in each.glob("kept-*"))
            for each in sorted((tmp_path / "state").iterdir())
        ])  # fmt: skip
    assert done.results == [0.125] * 2
    assert names[0] == [["1-1-0.dat", "1-1.dat"]] * 2
