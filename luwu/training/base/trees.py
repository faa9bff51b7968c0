"""A function applied to what lies in tuples, lists and dicts, as torch's pytree does it.

`torch.utils._pytree` leaves a cycle of closures behind for each tree it looks at; at some trees a
unit that is garbage for the collector, and memory that waits for it. The trees that modules take
and return are nearly always plain, so these are walked here, and all others by torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

_LEAVES: Final = frozenset({Tensor, nn.Parameter, type(None), bool, int, float, str})


def map_leaves(
    fn: Callable[[Any], Any], tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """`tree` with `fn` applied to each leaf, from left to right.

    `is_leaf`: what else is one, beside what has nothing in it.
    """
    kind = type(tree)
    if kind in _LEAVES:
        return fn(tree)
    if kind is tuple:
        return tuple([map_leaves(fn, each, is_leaf) for each in tree])
    if kind is list:
        return [map_leaves(fn, each, is_leaf) for each in tree]
    if kind is dict:
        return {key: map_leaves(fn, each, is_leaf) for key, each in tree.items()}
    return pytree.tree_map(fn, tree, is_leaf=is_leaf)


def move_tensors(tree: Any, device: torch.device) -> Any:
    """`tree` with its tensors on `device`, as FSDP2 and DDP move a model's inputs."""

    def move(leaf: Any) -> Any:
        is_movable = isinstance(leaf, (Tensor, PackedSequence))
        return leaf.to(device) if is_movable else leaf

    # The batch sizes of a PackedSequence stay on the CPU, which only its own method knows.
    return map_leaves(move, tree, lambda node: isinstance(node, PackedSequence))
