"""A small GPT: what the built-in job trains, and an example of an ordinary PyTorch model.

    ids_BT -> tokens + positions -> Block x layers -> norm -> head -> logits_BTV

Shapes: B samples, T positions, D width, H heads, K = D / H, V vocabulary.

It knows nothing of workers or sharding. Two things make it fit for every arm:

- Weights are drawn one parameter at a time, from the run's seed and the parameter's name alone. So
  every arm, rank and order of construction starts from the same bits, and a model built on the meta
  device can be filled unit by unit.
- A weight is cast to the dtype of the computation where it is used. Where a sharding layer already
  delivers it in that dtype the cast does nothing, so the arithmetic is the same in every arm.

Learns from: karpathy/nanoGPT `model.py`; Radford et al. 2019 (GPT-2: pre-norm, scaled residuals).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from luwu.base.errors import ConfigError
from luwu.base.seeds import derive

Checkpointing = Literal["none", "reentrant", "nonreentrant"]

INIT_STD_TIMES_ROOT_WIDTH = 0.55
"""GPT-2's spread of 0.02 at its width of 768, carried over to other widths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """Size and arithmetic of a GPT. Raises ConfigError if it cannot be built."""

    layers: int
    width: int
    heads: int
    context: int
    """Longest sequence, in tokens."""

    vocab: int = 256
    """Number of different tokens; 256 for bytes."""

    dropout: float = 0.0
    """Share of activations set to zero, in [0, 1)."""

    tied: bool = False
    """Use the token embedding as the output head too, as GPT-2 does."""

    dtype: torch.dtype = torch.float32
    """Dtype of the computation; parameters are registered in float32 whatever it is."""

    checkpointing: Checkpointing = "none"
    """Recomputation of blocks in backward, by which of torch's two ways; or none."""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "context", "vocab"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ConfigError(
                f"width {self.width} cannot be split into {self.heads} heads; "
                "make width a multiple of heads"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be in [0, 1), got {self.dropout}")


class Linear(nn.Linear):
    """A linear layer that computes in the dtype of its input."""

    def __init__(self, inputs: int, outputs: int, *, std: float, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.init_std = std

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]"""
        bias: Tensor | None = self.bias
        return F.linear(x, self.weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class LayerNorm(nn.LayerNorm):
    """A layer norm that computes in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class Embedding(nn.Embedding):
    """A table of vectors, looked up in the dtype of the computation."""

    def __init__(self, count: int, width: int, *, std: float, dtype: torch.dtype) -> None:
        super().__init__(count, width)
        self.init_std = std
        self.compute_dtype = dtype

    def forward(self, ids: Tensor) -> Tensor:
        """[...] -> [..., D]"""
        return F.embedding(ids, self.weight.to(self.compute_dtype))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.query_key_value = Linear(config.width, 3 * config.width, std=init_std(config))
        self.project = Linear(config.width, config.width, std=residual_std(config))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        batch, time, width = x_BTD.shape
        qkv = self.query_key_value(x_BTD).view(batch, time, 3, self.heads, width // self.heads)
        q_BHTK, k_BHTK, v_BHTK = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BHTK, v_BHTK, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        return self.project(y_BHTK.transpose(1, 2).reshape(batch, time, width))


class MLP(nn.Module):
    """Two linear layers with a GELU between."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.expand = Linear(config.width, 4 * config.width, std=init_std(config))
        self.project = Linear(4 * config.width, config.width, std=residual_std(config))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        return self.project(F.gelu(self.expand(x_BTD)))


class Block(nn.Module):
    """One transformer layer: the unit that a sharded arm pulls, computes and frees."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = LayerNorm(config.width)
        self.mlp = MLP(config)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        x_BTD = x_BTD + self.drop(self.attention(self.attention_norm(x_BTD)))
        return x_BTD + self.drop(self.mlp(self.mlp_norm(x_BTD)))


class GPT(nn.Module):
    """The whole model; `blocks` are its units, the rest belongs to the root."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        std, dtype = init_std(config), config.dtype
        self.tokens = Embedding(config.vocab, config.width, std=std, dtype=dtype)
        self.positions = Embedding(config.context, config.width, std=std, dtype=dtype)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = LayerNorm(config.width)
        self.head = Linear(config.width, config.vocab, std=std, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight
        _remember_names(self)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """int64 [B, T] -> logits [B, T, V]. Raises ConfigError if T does not fit the context."""
        time = ids_BT.shape[1]
        if time > self.config.context:
            raise ConfigError(f"{time} tokens do not fit a context of {self.config.context}")
        positions_T = torch.arange(time, device=ids_BT.device)
        x_BTD = self.drop(self.tokens(ids_BT) + self.positions(positions_T))
        for block in self.blocks:
            x_BTD = self._call(block, x_BTD)
        logits_BTV: Tensor = self.head(self.norm(x_BTD))
        return logits_BTV

    def _call(self, block: nn.Module, x_BTD: Tensor) -> Tensor:
        if self.config.checkpointing == "none" or not torch.is_grad_enabled():
            output: Tensor = block(x_BTD)
        else:
            reentrant = self.config.checkpointing == "reentrant"
            output = checkpoint(block, x_BTD, use_reentrant=reentrant)
        return output


def init_std(config: GPTConfig) -> float:
    """Spread of the first weights."""
    return INIT_STD_TIMES_ROOT_WIDTH / math.sqrt(config.width)


def residual_std(config: GPTConfig) -> float:
    """Spread of the weights that write to the residual stream, which sums 2 * layers of them."""
    return init_std(config) / math.sqrt(2 * config.layers)


def _remember_names(model: nn.Module) -> None:
    """Note in each module the full names of its own parameters; a tied one has its first name."""
    full_names = {id(parameter): name for name, parameter in model.named_parameters()}
    for module in model.modules():
        own = module.named_parameters(recurse=False)
        # Not through nn.Module.__setattr__: a plain dict, invisible to the state dict.
        module.__dict__["parameter_names"] = {
            local: full_names[id(parameter)] for local, parameter in own
        }


def initial_values(module: nn.Module, seed: int) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Each parameter that `module` itself owns, with its first values.

    A value depends on the seed, the parameter's full name and its shape, on nothing else. Values
    are drawn on the CPU, so that a GPU arm starts from the same bits.
    """
    names: dict[str, str] = module.__dict__["parameter_names"]
    for local, name in names.items():
        parameter = module.get_parameter(local)
        values = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        if isinstance(module, Linear | Embedding) and local == "weight":
            generator = torch.Generator("cpu").manual_seed(derive(seed, "init", name))
            values.normal_(0.0, module.init_std, generator=generator)
        else:
            values.fill_(1.0 if local == "weight" else 0.0)  # a norm's weight; a bias
        yield parameter, values


@torch.no_grad()
def init_weights(module: nn.Module, seed: int) -> None:
    """Give the parameters that `module` itself owns their first values; see `initial_values`."""
    for parameter, values in initial_values(module, seed):
        parameter.copy_(values)


def without_storage(config: GPTConfig) -> GPT:
    """The model on the meta device: names and shapes, no bytes and no values."""
    with torch.device("meta"), _NothingDrawn():
        return GPT(config)


class _NothingDrawn(TorchFunctionMode):
    """Leaves out the values that a layer draws for itself, which would be given up at once.

    On the meta device, drawing makes torch import its compiler, which takes more than a second.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, torch.Tensor.normal_):
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))
