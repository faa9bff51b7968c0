"""The parts of a session, each built alone: no `Session`, and what they need handed to them."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from luwu.base.errors import StepOrderError
from luwu.layout import ALL_FLOAT32
from luwu.training.base.progress import Progress
from luwu.training.devices.device import CpuDevice, write_unit
from luwu.training.devices.gradients import gradient_plan
from luwu.training.state.attached import Attachments
from luwu.training.steps.result import Results, StepResult
from luwu.training.units.model import Model
from luwu.training.units.placeholder import Placeholder, become_placeholder
from luwu.training.units.unit import Precision, Unit
from tests.helpers.fake_nic import FakeNetwork, FakeNic

NIC = FakeNic(FakeNetwork(1), 0)


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
    model.lay_out([shard(model, module)], [ALL_FLOAT32], NIC)
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


def test_no_lost_step_is_the_last() -> None:
    """Goal: after an abort no result waits for the lost start of a step."""
    attachments = Attachments(FakeNic(FakeNetwork(1), 0), Progress())
    results = Results()
    made = [
        StepResult(n, lambda: None, attempt=nullcontext, attachments=attachments) for n in range(2)
    ]
    for each in made:
        results.expect(each)
        results.last = each
    results.lose(2)
    assert results.last is made[1]
    results.lose(1)
    assert [each.is_lost for each in made] == [False, True]
    assert results.last is None
    results.wait_for_last()
    with pytest.raises(StepOrderError, match="step 1 was lost"):
        made[1].wait()
