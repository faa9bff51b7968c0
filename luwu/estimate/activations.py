"""The activations that a step of the built-in GPT needs, counted without storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from workers.gpt import GPTConfig


def activation_bytes(config: GPTConfig, *, batch: int) -> int:
    """Bytes that autograd saves of a forward and its loss, of so many samples, and that backward
    takes beside them; no parameters.

    Backward has two gradients at a time, of what an operation gave and of what it took: as much as
    twice the largest tensor that is saved.

    The forward runs on the meta device, where attention is made of products; the fused one, which
    workers have, keeps no [B, H, T, T] of them, so these are left out.
    """
    import torch

    from workers.gpt import without_storage

    model = without_storage(config)
    weights = {_storage(each) for each in model.parameters()}
    heads, tokens = config.heads, config.context
    products = ((batch, heads, tokens, tokens), (batch * heads, tokens, tokens))
    kept: list[Tensor] = []  # alive to the end: else another storage may take its place

    def keep(tensor: Tensor) -> Tensor:
        if tuple(tensor.shape) not in products and _storage(tensor) not in weights:
            kept.append(tensor)
        return tensor

    ids = torch.zeros(batch, config.context, dtype=torch.int64, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(ids).flatten(0, 1).float()
        torch.nn.functional.cross_entropy(logits, ids.flatten())
    sizes = {_storage(each): each.untyped_storage().nbytes() for each in kept}.values()
    return sum(sizes) + 2 * max(sizes)


def _storage(tensor: Tensor) -> int:
    """Tells storages apart that are on the meta device, where all have the same address."""
    return tensor.untyped_storage()._cdata
