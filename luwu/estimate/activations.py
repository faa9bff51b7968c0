"""The activations that a step of the built-in GPT needs, by the shapes of its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.gpt import GPTConfig

INDEX_BYTES: Final = 8
FLOAT32_BYTES: Final = 4


def activation_bytes(config: GPTConfig, *, batch: int) -> int:
    """Bytes that autograd saves of a forward and its loss, of so many samples, and that backward
    takes beside them; no parameters.

    Backward has two gradients at a time, of what an operation gave and of what it took: as much as
    twice the largest tensor that is saved. Attention is the fused one, which workers have: it keeps
    no [B, H, T, T]. A forward on the meta device would count the same, but makes torch import its
    compiler, which takes more than a second.
    """
    tokens = batch * config.context
    ids = [INDEX_BYTES * tokens, INDEX_BYTES * config.context]
    loss = [FLOAT32_BYTES * tokens * config.vocab, FLOAT32_BYTES]
    saved = ids + _dropped(config, tokens) + _head(config, tokens) + loss
    for _ in range(config.layers):
        if config.checkpointing == "none":
            saved += _block(config, tokens)
        else:
            saved.append(tokens * config.width * config.dtype.itemsize)  # its input alone
    return sum(saved) + 2 * max(saved)


def _block(config: GPTConfig, tokens: int) -> list[int]:
    """Sizes of the tensors that the layers of a block save: the input of each norm and linear
    layer; of the fused attention its inputs, a logarithm per head, and its output, which is the
    input of the projection."""
    D = config.width
    width_bytes = tokens * D * config.dtype.itemsize
    attention = [
        width_bytes, 3 * width_bytes, FLOAT32_BYTES * tokens * config.heads, width_bytes,
        *_cast(config, 3 * D * D, D * D), *_dropped(config, tokens),
    ]  # fmt: skip
    mlp = [
        width_bytes, 4 * width_bytes, 4 * width_bytes,
        *_cast(config, 4 * D * D, 4 * D * D), *_dropped(config, tokens),
    ]  # fmt: skip
    return [*_norm(config, tokens), *attention, *_norm(config, tokens), *mlp]


def _head(config: GPTConfig, tokens: int) -> list[int]:
    """The last norm, and the layer of the logits."""
    taken = tokens * config.width * config.dtype.itemsize
    return [*_norm(config, tokens), taken, *_cast(config, config.width * config.vocab)]


def _norm(config: GPTConfig, tokens: int) -> list[int]:
    """Its input; a mean and a deviation per token."""
    size, D = config.dtype.itemsize, config.width
    return [tokens * D * size, tokens * size, tokens * size, *_cast(config, D, D)]


def _cast(config: GPTConfig, *elems: int) -> list[int]:
    """Copies of weights in the dtype of the computation; none where it is that of the weights."""
    size = config.dtype.itemsize
    return [] if size == FLOAT32_BYTES else [count * size for count in elems]


def _dropped(config: GPTConfig, tokens: int) -> list[int]:
    """The mask of a dropout; none where nothing is dropped."""
    return [tokens * config.width * config.dtype.itemsize] if config.dropout else []
