"""Trees of switches for tests."""

from __future__ import annotations

from collections.abc import Iterable

from luwu.base.tree import NODE, SWITCH, Place, Tree


def leaves_per_group(groups: Iterable[Iterable[int]]) -> Tree:
    """A root, and a leaf for each group of ranks: `host-0`, `host-1`, ..."""
    leaves = [
        Place(name=f"host-{index}", parent=SWITCH, workers=tuple(ranks))
        for index, ranks in enumerate(groups)
    ]
    return Tree((Place(name=SWITCH, parent=NODE, workers=()), *leaves))
