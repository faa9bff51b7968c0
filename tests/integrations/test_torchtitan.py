"""A model as training scripts of today set it up: the order of torchtitan.

Activation checkpoints, then `torch.compile` of each block, then `fully_shard` with a policy, first
weights on meta, then clipping by the norm of all gradients.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy

import luwu
from tests.helpers.real_training import in_cluster
from tests.helpers.small_models import gpt_config, gpt_loss, shard_gpt
from workers.gpt import GPT, init_weights


def train(compiled: str) -> list[float]:
    with torch.device("meta"):
        model: Any = GPT(gpt_config(dtype=torch.bfloat16))
    for index, block in enumerate(model.blocks):
        wrapped: Any = checkpoint_wrapper(block, preserve_rng_state=False)
        if compiled == "blocks":
            wrapped = torch.compile(wrapped, backend="aot_eager", fullgraph=True)
        model.blocks[index] = wrapped
    shard_gpt(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    luwu.init_weights(model, lambda module: init_weights(module, 3))
    optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-3, max_grad_norm=1.0)
    called: Any = torch.compile(model, backend="aot_eager") if compiled == "model" else model
    losses = []
    for step in range(3):
        loss = gpt_loss(called, step, 0, 0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    names = [*luwu.get_model_state_dict(model)]
    assert names[:3] == ["tokens.weight", "positions.weight", "blocks.0.attention_norm.weight"]
    return losses


@pytest.mark.feature("torch.compile of a unit")
@pytest.mark.parametrize("compiled", ["blocks", pytest.param("model", marks=pytest.mark.slow)])
def test_a_model_of_today_trains_as_it_does_uncompiled(compiled: str, tmp_path: Path) -> None:
    """I4. Goal: the same losses and weights, to the bit, whether each block or the whole model is
    compiled, with names as the model has them, and without a warning."""
    plain = in_cluster(tmp_path / "plain", lambda _: train(""))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = in_cluster(tmp_path / "compiled", lambda _: train(compiled))
    torch._dynamo.reset()
    assert found == plain
    of_python = "on Python 3.13.0"  # of which torch's compiler says that it is slower
    assert [text for each in seen if of_python not in (text := str(each.message))] == []
