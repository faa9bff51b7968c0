"""The trees of switches that histories are told of."""

from __future__ import annotations

import pytest

from luwu.base.tree import Tree, parse_tree


def tree_of(workers: int, **switches: tuple[str, str]) -> Tree:
    """A tree from (parent, workers) by name."""
    document = {
        name: {"parent": parent, "workers": ranks} if ranks else {"parent": parent}
        for name, (parent, ranks) in switches.items()
    }
    return parse_tree(document, workers=workers, where="test")


TREES = {
    "two levels": tree_of(4, top=("node", ""), a=("top", "0-1"), b=("top", "2-3")),
    "ranks in turn": tree_of(4, top=("node", ""), a=("top", "0,2"), b=("top", "1,3")),
    "workers and a switch": tree_of(4, top=("node", "1"), a=("top", "0,2-3")),
    "three levels": tree_of(
        6, top=("node", "5"), mid=("top", "4"), a=("mid", "0-1"), b=("mid", "2-3")
    ),
}
every_tree = pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
