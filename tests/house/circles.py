"""Import circles: modules each of which reaches the other by imports, those for types included."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.house.source import imported, modules


def modules_in_circles(root: Path) -> list[str]:
    """The modules of a circle, each after one that it imports; there may be others."""
    known = modules(root)
    graph = {
        name: {source for _, source, _ in imported(module, known)} - {name}
        for name, module in known.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[1:]
    return []
