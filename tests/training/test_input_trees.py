"""Trees of inputs and outputs are walked as torch walks them, without its garbage."""

from __future__ import annotations

import gc
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils import _pytree as pytree

from luwu.training.steps.hooks import map_leaves, move_tensors

Pair = namedtuple("Pair", "left right")


class Opaque:
    """A leaf of a kind that nobody knows."""


def plain_tree(random: Random, depth: int) -> Any:
    if not depth or random.random() < 0.6:
        leaves = (torch.tensor(1.0), torch.nn.Parameter(torch.ones(1)), None, True, 3, 0.5, "text")
        return random.choice(leaves)
    children = [plain_tree(random, depth - 1) for _ in range(random.randrange(4))]
    named = {f"key {index}": child for index, child in enumerate(children)}
    return random.choice((tuple(children), children, named))


@pytest.mark.parametrize("seed", range(50))
def test_plain_trees_are_mapped_as_torch_maps_them(seed: int) -> None:
    tree = plain_tree(Random(seed), 4)
    ours: list[Any] = []
    theirs: list[Any] = []

    def told(to: list[Any]) -> Any:
        return lambda leaf: (to.append(leaf), [id(leaf)])[1]

    assert map_leaves(told(ours), tree) == pytree.tree_map(told(theirs), tree)
    assert [id(leaf) for leaf in ours] == [id(leaf) for leaf in theirs]


@pytest.mark.parametrize(
    "tree",
    [
        Pair(torch.ones(1), [torch.zeros(1)]),
        OrderedDict(second=torch.ones(1), first=(torch.zeros(1),)),
        [Opaque(), Pair({"key": torch.ones(1)}, Opaque())],
        torch.Size([2, 3]),
    ],
)
def test_other_trees_are_left_to_torch(tree: Any) -> None:
    found, expected = map_leaves(id, tree), pytree.tree_map(id, tree)
    assert (type(found), found) == (type(expected), expected)


def test_tensors_are_moved_and_nothing_else() -> None:
    """Goal: what FSDP2 moves to its device, and the rest is left. Method: the device `meta`."""
    there = torch.device("meta")
    opaque = Opaque()
    tree = ((torch.ones(2), [3, None]), {"pair": Pair(torch.zeros(1), "text"), "other": opaque})
    (first, rest), named = move_tensors(tree, there)
    assert (first.device, rest) == (there, [3, None])
    assert (type(named["pair"]), named["pair"].left.device) == (Pair, there)
    assert (named["pair"].right, named["other"]) == ("text", opaque)


@pytest.mark.parametrize("depth", [0, 1])
def test_the_batch_sizes_of_a_packed_sequence_stay(depth: int) -> None:
    """Goal: recurrent layers want these on the CPU."""
    packed = pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
    tree = [packed] if depth else packed
    moved = move_tensors(tree, torch.device("meta"))
    moved = moved[0] if depth else moved
    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("meta", "cpu")


def collected(walk: Callable[[], Any]) -> int:
    """Objects in cycles after a thousand walks, the fewest of three times: earlier tests may leave
    some too, and so may threads of theirs."""
    walk()
    counts = []
    gc.disable()
    try:
        for _ in range(3):
            gc.collect()
            for _ in range(1000):
                walk()
            counts.append(gc.collect())
        return min(counts)
    finally:
        gc.enable()


def test_a_plain_tree_leaves_nothing_to_the_collector() -> None:
    tree = (torch.ones(1), {"mask": None, "sizes": [1, 2]})
    assert collected(lambda: map_leaves(id, tree)) < 500
