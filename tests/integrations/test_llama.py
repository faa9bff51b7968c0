"""A Llama as training scripts of today set it up: units per block, checkpointing, compile, bf16.

The order is that of torchtitan: activation checkpoints, then `torch.compile` of each block, then
`fully_shard` with a policy, first weights on meta, then clipping by the norm of all gradients.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy

import luwu
from tests.helpers.real_training import in_cluster

VOCAB, WIDTH, HEADS, LAYERS, CONTEXT, STEPS = 128, 64, 4, 3, 32, 3


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
        return x * scale.type_as(x) * self.weight


def rotated(x_BHTD: Tensor) -> Tensor:
    """Rotary positions."""
    _, _, T, D = x_BHTD.shape
    rates = 10_000 ** -(torch.arange(0, D, 2, device=x_BHTD.device) / D)
    angles = torch.outer(torch.arange(T, device=x_BHTD.device), rates)
    even, odd, cos, sin = x_BHTD[..., 0::2], x_BHTD[..., 1::2], angles.cos(), angles.sin()
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
    return turned.flatten(-2).type_as(x_BHTD)


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = RMSNorm(), RMSNorm()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in "qkvo")
        self.w1, self.w3 = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in "13")
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        y = self.attention_norm(x)
        q, k, v = (
            w(y).view(B, T, HEADS, C // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(B, T, C))
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleDict({str(index): TransformerBlock() for index in range(LAYERS)})
        self.norm, self.output = RMSNorm(), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x)
        logits: Tensor = self.output(self.norm(x))
        return logits


@torch.no_grad()
def fill(module: nn.Module) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        generator = torch.Generator().manual_seed(parameter.numel() + len(name))
        random = 0.05 * torch.randn(parameter.shape, generator=generator)
        parameter.copy_(torch.ones(parameter.shape) if parameter.dim() == 1 else random)


def train(compiled: str) -> list[float]:
    with torch.device("meta"):
        model = Llama()
    for name, layer in model.layers.items():
        wrapped: Any = checkpoint_wrapper(layer, preserve_rng_state=False)
        if compiled == "blocks":
            wrapped = torch.compile(wrapped, backend="aot_eager", fullgraph=True)
        model.layers[name] = wrapped
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers.values():
        luwu.fully_shard(layer, mp_policy=policy)
    luwu.fully_shard(model, mp_policy=policy)
    luwu.init_weights(model, fill)
    optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-3, max_grad_norm=1.0)
    called: Any = torch.compile(model, backend="aot_eager") if compiled == "model" else model
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        tokens = torch.randint(VOCAB, (2, CONTEXT + 1), generator=generator)
        loss = F.cross_entropy(
            called(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten()
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    names = [*luwu.get_model_state_dict(model)]
    assert names[:2] == ["tok_embeddings.weight", "layers.0.attention_norm.weight"]
    return losses


@pytest.mark.feature("torch.compile of a unit")
@pytest.mark.parametrize("compiled", ["blocks", pytest.param("model", marks=pytest.mark.slow)])
def test_a_llama_of_today_trains_as_it_does_uncompiled(compiled: str, tmp_path: Path) -> None:
    """I4. Goal: the same losses and weights, to the bit, whether each block or the whole model is
    compiled, with names as the model has them, and without a warning."""
    plain = in_cluster(tmp_path / "plain", lambda _: train(""))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = in_cluster(tmp_path / "compiled", lambda _: train(compiled))
    torch._dynamo.reset()
    assert found == plain
    assert plain.results[0][-1] < plain.results[0][0]
    of_python = "on Python 3.13.0"  # of which torch's compiler says that it is slower
    assert [text for each in seen if of_python not in (text := str(each.message))] == []
