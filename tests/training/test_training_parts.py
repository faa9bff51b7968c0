"""The parts of a session, each built alone: no `Session`, and what they need handed to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from luwu.base.errors import ConfigError, StepAborted, StepOrderError
from luwu.layout import ALL_FLOAT32
from luwu.training.base.progress import Attempt, Progress
from luwu.training.devices.device import CpuDevice, write_unit
from luwu.training.devices.gradients import gradient_plan
from luwu.training.state.attached import Attachments
from luwu.training.state.first_weights import FirstWeights, Sources
from luwu.training.steps.backward import Backward
from luwu.training.steps.clip import Clipping
from luwu.training.steps.loss_scale import LossScale
from luwu.training.steps.pulls import Pulls
from luwu.training.steps.pushes import Pushes
from luwu.training.steps.result import Results, StepResult
from luwu.training.units.model import Model, Shape
from luwu.training.units.placeholder import Placeholder, become_placeholder
from luwu.training.units.unit import Precision, Unit
from luwu.wire.description import Description
from luwu.wire.norms import Clip
from tests.helpers.fake_nic import FakeNetwork, FakeNic

SHAPE = Shape(chunk_bytes=16384, optimizer_nodes=1, reshard_after_forward=None)


def no_drop(error: StepAborted) -> StepAborted:
    return error


def shard(model: Model, module: nn.Module) -> list[Placeholder]:
    """What `fully_shard` does to a module, without a session; its placeholders."""
    found = []
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, Placeholder):
            become_placeholder(
                parameter, name, owner=model, device=torch.device("cpu"), keeps_value=True
            )
            assert isinstance(parameter, Placeholder)
            found.append(parameter)
    model.added.append(Unit([module], policy=Precision(), reshard_after_forward=None))
    return found


class Worker:
    """Pulls, pushes and backward of one worker, on a network of its own; one linear module."""

    def __init__(self, *, update: str = "at_step") -> None:
        torch.manual_seed(7)
        self.module = nn.Linear(3, 2)
        self.values = self.module.weight.detach().clone()
        self.network = FakeNetwork(1)
        self.nic = nic = FakeNic(self.network, 0)
        self.model, self.progress = Model(), Progress()
        self.model.lay_out([shard(self.model, self.module)], [ALL_FLOAT32], SHAPE)
        (self.unit,) = self.model.units
        device = CpuDevice()
        device.connect(nic)
        attempt, progress, model = Attempt(no_drop), self.progress, self.model
        first_weights = FirstWeights(nic, model)
        first_weights.laid_out(torch.device("cpu"))
        joined = nic.join(
            Description(
                layout=model.layout, optimizer="sgd", update=update, state_fields=("momentum",)
            )
        )
        first_weights.joined(is_resumed=joined.loaded)
        first_weights.load()
        scale = LossScale(progress, Results())
        self.pulls = Pulls(
            nic, model, progress=progress, attempt=attempt, first_weights=first_weights
        )
        self.pushes = Pushes(nic, device, progress=progress, attempt=attempt, loss_scale=scale)
        self.backward = Backward(
            nic, model, progress=progress, attempt=attempt, pulls=self.pulls, pushes=self.pushes,
            loss_scale=scale, hyper=lambda: b"rates", begin=lambda: None,
        )  # fmt: skip
        progress.is_streaming = update == "streaming"
        self.pushes.start(model)
        self.pulls.start(device, window=1)


def test_attempt_drops_before_the_script_knows() -> None:
    """Goal: the script sees the newest abort, after everything was dropped, and its cause."""
    dropped = []

    def drop(error: StepAborted) -> StepAborted:
        dropped.append(error.step)
        return StepAborted(1, "a second one") if error.step == 3 else error

    attempt = Attempt(drop)
    with attempt():
        pass
    assert dropped == []
    with pytest.raises(StepAborted) as caught, attempt():
        raise StepAborted(2, "lost")
    assert (caught.value.step, dropped) == (2, [2])
    with pytest.raises(StepAborted) as caught, attempt():
        raise StepAborted(3, "lost")
    assert (caught.value.step, dropped) == (1, [2, 3])
    assert isinstance(caught.value.__cause__, StepAborted)


def result(number: int) -> StepResult:
    """Of a step that was decided at once."""
    handle = SimpleNamespace(verdict=lambda: (True, (0.5, 0.25, 0.125)), decision=lambda: None)
    nic = FakeNic(FakeNetwork(1), 0)
    found = StepResult(
        number, lambda: None, attempt=Attempt(no_drop), attachments=Attachments(nic, Progress())
    )
    found.handle = handle
    return found


def test_results_from_a_lost_step_on_are_lost() -> None:
    """Goal: an abort takes the results of the steps that are computed again, and no other."""
    results, made = Results(), [result(number) for number in range(3)]
    for each in made:
        results.expect(each)
        results.last = each
    results.lose(3)
    assert results.last is made[2]
    results.lose(1)
    assert [each.is_lost for each in made] == [False, True, True]
    assert results.last is None
    results.wait_for_last()  # there is nothing to wait for
    assert made[0].grad_norm == 0.5
    with pytest.raises(StepOrderError, match="step 2 was lost"):
        made[2].wait()


def test_norms_are_known_by_their_own_step_only() -> None:
    """Goal: each call has its own; those of a step that is dropped say so, and no others."""
    clipping, clip = Clipping(), Clip(2.0, 1.0)
    dropped = clipping.ask(4, clip, must_be_finite=False)
    clipping.drop()
    norms = [clipping.ask(4, clip, must_be_finite=False) for _ in range(2)]
    assert clipping.clips == (clip, clip)
    with pytest.raises(StepOrderError, match="is known after step"):
        float(norms[0])
    assert clipping.resolve(result(4)) == norms
    clipping.drop()
    assert [float(norm) for norm in norms] == [0.25, 0.125]
    with pytest.raises(StepOrderError, match="will never be known: the step was dropped"):
        float(dropped)
    assert clipping.clips == ()


def test_sources_count_for_the_model_around_a_part() -> None:
    """Goal: what was given for a part of a model fills the model once it is complete."""
    model, sources = Model(), Sources()
    module = nn.Sequential(nn.Linear(2, 2))
    parameters = shard(model, module)
    sources.initialisers[module[0]] = nn.init.zeros_
    model.lay_out([parameters], [ALL_FLOAT32], SHAPE)
    sources.laid_out(model.roots)
    assert sources.initialisers == {module: nn.init.zeros_}
    assert sources.files_of(parameters[0]) is None


def test_model_is_laid_out_after_groups_that_were_wrong() -> None:
    """Goal: an optimizer that was refused leaves nothing, so the next one finds the same model."""
    model, module = Model(), nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    first = shard(model, module[0])
    rest = shard(model, module)
    with pytest.raises(ConfigError, match="in no group of the optimizer"):
        model.lay_out([first], [ALL_FLOAT32], SHAPE)
    with pytest.raises(AssertionError, match="before the layout"):
        model.layout  # noqa: B018 - there is none yet
    assert model.units == []
    model.lay_out([first, rest], [ALL_FLOAT32] * 2, SHAPE)
    assert [unit.name for unit in model.units] == ["root", "0"]
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [p.name for p in model.layout.parameters] == names
    assert [p.group for p in model.layout.parameters] == [0, 0, 1, 1]
    assert [unit.trainable_elems > 0 for unit in model.units] == [True, True]
    assert model.name_frozen() == ""


def test_weights_come_and_go() -> None:
    """Goal: a unit's modules hold its weights between `acquire` and `release`, and no longer."""
    worker = Worker()
    worker.pulls.acquire(worker.unit)
    assert worker.pulls.bytes_count.now == worker.unit.nbytes
    assert torch.equal(worker.module.weight, worker.values)
    worker.pulls.release(worker.unit)
    assert isinstance(worker.module.weight, Placeholder)
    assert worker.pulls.early_ratio == 1.0  # an eager network
    worker.pulls.end()
    assert worker.pulls.bytes_count.now == 0


def test_gradients_are_pushed_or_kept() -> None:
    """Goal: what is kept goes out with the next push, added in the order of the backwards."""
    worker = Worker()
    unit, pushes = worker.unit, worker.pushes
    worker.pulls.acquire(unit)
    worker.module.weight.grad = torch.ones(2, 3)
    unit.keep_gradients()
    assert not pushes.push(unit, None)
    unit.drop_gradients()
    assert worker.network.counts["push"] == 0
    worker.module.weight.grad = torch.ones(2, 3)
    assert pushes.push(unit, unit.take_gradients())
    assert worker.network.counts["push"] == 1
    assert unit.kept == []
    (handle,) = pushes.take()
    worker.nic.wait(handle)
    assert pushes.take() == []


class OneAtOnce:
    """Cells of which one is free at a time: another comes free when the first was pushed."""

    def __init__(self) -> None:
        self.is_free = True
        self.waits_count = 0

    def take_now(self, nbytes: int) -> Any:
        if not self.is_free:
            return None
        self.is_free = False
        return SimpleNamespace(data=memoryview(bytearray(nbytes)))

    def take(self, nbytes: int) -> Any:
        assert self.is_free, "nothing was pushed before the wait, so it would never end"
        self.waits_count += 1
        return self.take_now(nbytes)


def test_what_is_written_is_pushed_before_a_wait() -> None:
    """Goal: a unit of many chunks goes out through a single cell, in order and unchanged."""
    model, module = Model(), nn.Linear(128, 96, bias=False)
    model.lay_out([shard(model, module)], [ALL_FLOAT32], SHAPE)
    device, cells = CpuDevice(), OneAtOnce()
    device.cells = cells
    plans = gradient_plan(model.layout, 0, torch.float32)
    gradient = torch.arange(96 * 128, dtype=torch.float32).view(96, 128)
    found = []
    for group, ready in write_unit(device, plans, [gradient], torch.float32):
        (only,) = group
        assert ready is None  # it is there
        found.append(torch.frombuffer(only.cell.data, dtype=torch.float32))
        cells.is_free = True  # it is pushed
    assert len(found) == len(plans) == 3
    assert cells.waits_count == 2
    assert torch.equal(torch.cat(found), gradient.view(-1))
    ((absent, _),) = write_unit(device, plans, [None], torch.float32)
    assert [each.cell for each in absent] == [None] * 3


@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_a_backward_without_samples_is_a_part(update: str) -> None:
    """Goal: every unit states that it has no gradient; with streaming, one part is all."""
    worker = Worker(update=update)
    worker.backward.empty()
    assert worker.progress.parts == 1
    assert worker.network.counts["push"] == 1
    assert worker.backward.hyper_to_commit() == b"rates"
    if update == "streaming":
        with pytest.raises(StepOrderError, match="has had a backward"):
            worker.backward.empty()
    else:
        worker.backward.empty()
        assert worker.progress.parts == 2
