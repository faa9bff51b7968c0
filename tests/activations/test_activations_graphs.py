"""Graphs of offloaded activations: run twice, dropped, nested, compiled, failing; refusals."""

from __future__ import annotations

import copy
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import luwu
from luwu import activations
from luwu.base.errors import ConfigError
from tests.helpers.activations import (
    KINDS,
    Function,
    compare,
    gradients,
    nothing_is_left,
    numbers,
    of,
    offloaded,
    once,
    same,
)
from tests.helpers.small_models import gpt_config, gpt_loss, make_gpt

# ---------------------------------------------------------------------------- graphs


@pytest.mark.parametrize("checkpointing", KINDS)
def test_backward_twice(tmp_path: Path, checkpointing: Any) -> None:
    """Goal: a retained graph is unpacked twice; gradients add up as ever."""

    def run(model: nn.Module) -> None:
        loss = gpt_loss(model, 0, 0, 0)
        loss.backward(retain_graph=True)
        loss.backward()

    compare(lambda: make_gpt(gpt_config(checkpointing=checkpointing)), run, tmp_path)


def test_backward_of_backward(tmp_path: Path) -> None:
    """Goal: create_graph; the second backward goes through what the first one unpacked."""

    def run(model: nn.Module) -> Tensor:
        x = numbers(48, 32).requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        grad.square().sum().backward()
        return grad.detach()

    compare(of(lambda weight, x: torch.tanh(x @ weight) ** 3), run, tmp_path)


@pytest.mark.parametrize("checkpointing", KINDS)
@pytest.mark.parametrize("is_first_first", [True, False])
def test_two_forwards_before_their_backwards(
    tmp_path: Path, checkpointing: Any, is_first_first: bool
) -> None:
    def run(model: nn.Module) -> None:
        losses = [gpt_loss(model, 0, 0, 0), gpt_loss(model, 1, 0, 0)]
        for loss in losses if is_first_first else losses[::-1]:
            loss.backward()

    compare(lambda: make_gpt(gpt_config(checkpointing=checkpointing)), run, tmp_path)


@pytest.mark.parametrize("checkpointing", KINDS)
def test_a_graph_that_is_dropped(tmp_path: Path, checkpointing: Any) -> None:
    """A3. Goal: no backward, or a part of one: everything is given back as the graph goes."""
    model: Any = make_gpt(gpt_config(checkpointing=checkpointing))
    offloaded(model, tmp_path)
    loss = gpt_loss(model, 0, 0, 0)
    assert luwu.activation_stats(model).live_bytes > 0
    del loss
    nothing_is_left(model, tmp_path)
    loss = gpt_loss(model, 0, 0, 0)
    torch.autograd.grad(loss, model.head.weight, retain_graph=True) if checkpointing != (
        "reentrant"
    ) else None
    del loss
    nothing_is_left(model, tmp_path)
    loss = gpt_loss(model, 0, 0, 0)
    open_files = len(os.listdir("/proc/self/fd"))
    del model
    loss.backward()  # the graph keeps what it needs
    del loss
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == open_files - 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_error_in_forward(tmp_path: Path, reentrant: bool) -> None:
    """Goal: the hooks are gone, also from nested modules, and so is what was saved."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.fails = offloaded(nn.Linear(32, 32), tmp_path), True

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(torch.tanh, self.layer(x), use_reentrant=reentrant)
            if self.fails:
                raise ValueError("as planned")
            return y * y

    model = offloaded(Model(), tmp_path)
    try:
        model(numbers(48, 32))
    except ValueError:
        pass
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    nothing_is_left(model, tmp_path)
    nothing_is_left(model.layer, tmp_path)
    model.fails = False
    model(numbers(48, 32)).sum().backward()
    assert model.layer.weight.grad is not None


def test_an_error_in_backward(tmp_path: Path) -> None:
    """Goal: an error in the middle; what the graph held is given back with it."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise ValueError("as planned")

    model = offloaded(
        Function(lambda weight, x: torch.tanh(Fails.apply(torch.tanh(x @ weight)))), tmp_path
    )
    try:
        once(model)
    except ValueError:
        pass
    nothing_is_left(model, tmp_path)


def test_several_threads(tmp_path: Path) -> None:
    """Goal: one module, used by three threads at once."""
    model, expected = offloaded(make_gpt(gpt_config()), tmp_path), make_gpt(gpt_config())
    for part in range(3):
        gpt_loss(expected, 0, 0, part).backward()
    found: list[Any] = [None] * 3

    def work(part: int) -> None:
        loss = gpt_loss(model, 0, 0, part)
        found[part] = torch.autograd.grad(loss, list(model.parameters()))

    workers = [threading.Thread(target=work, args=(part,)) for part in range(3)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)
    sums = [a + b + c for a, b, c in zip(*found, strict=True)]
    assert same(sums, gradients(expected))
    nothing_is_left(model, tmp_path)


def test_no_grad_and_eval(tmp_path: Path) -> None:
    """Goal: without a graph nothing is saved."""
    model = offloaded(make_gpt(gpt_config(checkpointing="nonreentrant")), tmp_path)
    with torch.no_grad():
        gpt_loss(model, 0, 0, 0)
    with torch.inference_mode():
        gpt_loss(model.eval(), 0, 0, 0)
    assert luwu.activation_stats(model).saved_bytes == 0


@pytest.mark.parametrize("checkpointing", KINDS)
def test_compiled_blocks(tmp_path: Path, checkpointing: Any) -> None:
    """Goal: the inputs of compiled blocks that are checkpointed go as ever."""

    def make() -> nn.Module:
        model: Any = make_gpt(gpt_config(checkpointing=checkpointing))
        for block in model.blocks:
            block.compile(backend="aot_eager")
        return model

    stats = compare(make, lambda model: gpt_loss(model, 0, 0, 0).backward(), tmp_path)
    assert stats.saved_bytes >= 3 * 4 * 2 * 16 * 64


@pytest.mark.parametrize("reentrant", [True, False])
def test_nested_checkpoints(tmp_path: Path, reentrant: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

        def pair(self, x: Tensor) -> Tensor:
            return torch.tanh(self.layers[1](torch.tanh(self.layers[0](x))))

        def forward(self, x: Tensor) -> Tensor:
            def outer(x: Tensor) -> Tensor:
                y = checkpoint(self.pair, x, use_reentrant=reentrant)
                return torch.tanh(self.layers[2](y))

            y = checkpoint(outer, x.tanh(), use_reentrant=reentrant)
            return self.layers[3](y)

    compare(Model, once, tmp_path)


# ---------------------------------------------------------------------------- faults, refusals


@pytest.mark.feature("offload_activations inside a checkpoint")
def test_inside_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """Goal: on a block that is checkpointed from outside, nothing could be moved: it says where to
    call it instead."""
    model: Any = make_gpt(gpt_config(checkpointing="nonreentrant"))
    offloaded(model.blocks[0], tmp_path)
    with pytest.raises(ConfigError, match=r"this Block runs inside of a checkpoint.*whole model"):
        gpt_loss(model, 0, 0, 0)
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_inside_of_a_reentrant_checkpoint(tmp_path: Path) -> None:
    """Goal: what its repeated forward saves is used at once, and stays."""
    model: Any = make_gpt(gpt_config(checkpointing="reentrant"))
    plain = copy.deepcopy(model)
    offloaded(model.blocks[0], tmp_path)
    for each in (model, plain):
        gpt_loss(each, 0, 0, 0).backward()
    assert same(gradients(model), gradients(plain))
    assert luwu.activation_stats(model.blocks[0]).saved_bytes == 0


def test_arguments_that_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="takes a module, got str"):
        luwu.offload_activations("model")  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="memory_budget: '4' has no unit"):
        luwu.offload_activations(layer, memory_budget="4", directory=tmp_path)
    for wrong in (-1, 1.5, True, None):
        with pytest.raises(ConfigError, match=r"memory_budget=.*give a number of bytes"):
            luwu.offload_activations(layer, memory_budget=wrong, directory=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="name a directory that can be written to"):
        luwu.offload_activations(layer, directory=tmp_path / "gone")
    monkeypatch.setattr(activations, "memory_kind", lambda directory: "tmpfs")
    with pytest.raises(ConfigError, match=r"is memory \(tmpfs\).*directory="):
        luwu.offload_activations(layer)
    with pytest.raises(ConfigError, match="on this Linear first"):
        luwu.activation_stats(layer)
    assert luwu.offload_activations(layer, directory=tmp_path) is layer
    with pytest.raises(ConfigError, match="called twice on the same Linear"):
        luwu.offload_activations(layer, directory=tmp_path)


def test_a_copy_has_a_store_of_its_own(tmp_path: Path) -> None:
    """Goal: deepcopy of a module; neither sees what the other saved."""
    model = offloaded(make_gpt(gpt_config()), tmp_path)
    other: Any = copy.deepcopy(model)
    gpt_loss(other, 0, 0, 0).backward()
    assert luwu.activation_stats(model).saved_bytes == 0
    assert luwu.activation_stats(other).saved_bytes > 0
    assert F.mse_loss(model.head.weight, other.head.weight) == 0
