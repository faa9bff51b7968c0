"""The parts of a session, each built alone: no `Session`, and what they need handed to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from luwu.layout import ALL_FLOAT32
from luwu.training.devices.device import CpuDevice, write_unit
from luwu.training.devices.gradients import gradient_plan
from luwu.training.units.model import Model, Shape
from luwu.training.units.placeholder import Placeholder, become_placeholder
from luwu.training.units.unit import Precision, Unit

SHAPE = Shape(chunk_bytes=16384, optimizer_nodes=1, reshard_after_forward=None)


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
