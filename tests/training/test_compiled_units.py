"""torch.compile of units and of models of them: torch's numbers, and nothing of ours compiled."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import luwu
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.small_models import Block, batch, compare, make_stack
from tests.helpers.training_harness import worker


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """Neither of other tests, nor of this one for them."""
    torch._dynamo.reset()
    # Without a GPU torch 2.11 crashes if the first thread that ever compiled has ended.
    torch.compile(lambda x: -x, backend="eager")(torch.ones(1))
    yield
    torch._dynamo.reset()


ORDERS = ["compile, shard", "torch.compile, shard", "shard, compile", "shard, compile the model"]


@pytest.mark.feature("torch.compile of a unit")
@pytest.mark.parametrize("order", ORDERS)
def test_compiled_units(order: str) -> None:
    """I4. Goal: compiled units give what they gave before, step after step; each block as one graph
    too, in the order of torchtitan (compile each block, then shard it) and in the other: weights
    come and go around what is compiled, and no hook cuts it. Method: the compiler's own autograd
    with eager kernels, so that the arithmetic is the same."""

    def shard_and_compile(model: Any) -> None:
        for index, block in enumerate(model.blocks):
            if order == "compile, shard":
                block.compile(backend="aot_eager", fullgraph=True)
            elif order == "torch.compile, shard":
                model.blocks[index] = torch.compile(block, backend="aot_eager", fullgraph=True)
        for block in model.blocks:
            luwu.fully_shard(block)
        luwu.fully_shard(model)
        for block in model.blocks if order == "shard, compile" else ():
            block.compile(backend="aot_eager", fullgraph=True)
        if order == "shard, compile the model":
            model.compile(backend="aot_eager")

    compare(lambda: make_stack(blocks=2), shard_and_compile, world_size=1, steps=3)


@pytest.mark.feature("torch.compile of a unit")
def test_a_compiled_model_of_many_units_recompiles_nothing_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Goal: no warning about recompile limits, which would point into this library: its hooks are
    no code of the model. More units than the limit, in training and evaluation."""
    blocks = torch._dynamo.config.recompile_limit + 2
    with worker(FakeNetwork(1)), caplog.at_level(logging.WARNING, logger="torch._dynamo"):
        model = make_stack(blocks=blocks)
        luwu.fully_shard_each(model, Block)
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        compiled = torch.compile(model, backend="eager")
        for step in range(2):
            compiled(batch(step, 0, 0)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                compiled(batch(step, 0, 0))
    assert "limit" not in caplog.text
