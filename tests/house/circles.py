"""Import circles: modules each of which reaches the other by imports, those for types included."""

from __future__ import annotations

from pathlib import Path

from tests.house.source import imported, modules


def modules_in_circles(root: Path) -> list[str]:
    """Each module that imports itself through others, with the others."""
    known = modules(root)
    graph = {
        name: {source for _, source, _ in imported(module, known)} - {name}
        for name, module in known.items()
    }
    found = []
    for circle in strongly_connected(graph):
        if len(circle) > 1:
            found += [f"{name}, of {len(circle)} with {circle[0]}" for name in circle]
    return found


def strongly_connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of nodes that reach each other, each sorted (Tarjan 1972, without recursion)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found = []
    for start, first in graph.items():
        if start in number:
            continue
        work = [(start, iter(sorted(first)))]
        number[start] = low[start] = len(number)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in number:
                    number[target] = low[target] = len(number)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], number[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    cut = stack.index(node)
                    found.append(sorted(stack[cut:]))
                    on_stack -= set(stack[cut:])
                    del stack[cut:]
    return found
