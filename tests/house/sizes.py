"""Files, functions and signatures that have grown too large."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.source import Module, modules

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 10
REASON = "# more than ten:"
"""Begins the comment that gives a wide signature's reason, on a line of the signature."""


def long_files(root: Path) -> list[str]:
    """Files of more than 700 lines."""
    found = []
    for module in modules(root).values():
        lines = len(module.text.splitlines())
        if lines > FILE_LINES_MAX:
            found.append(f"{module.place}: {lines} lines")
    return found


def long_functions(root: Path) -> list[str]:
    """Functions of more than 60 lines, docstring included and decorators not."""
    found = []
    for module, node in _functions(root):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            found.append(f"{module.place}:{node.lineno} {node.name}: {lines} lines")
    return found


def wide_signatures(root: Path) -> list[str]:
    """Functions of more than ten parameters whose signature gives no reason; `self` is none."""
    found = []
    for module, node in _functions(root):
        given = [*node.args.posonlyargs, *node.args.args]
        count = len(given) + len(node.args.kwonlyargs)
        count -= bool(given) and given[0].arg in ("self", "cls")
        signature = module.text.splitlines()[node.lineno - 1 : node.body[0].lineno - 1]
        if count > PARAMETERS_MAX and not any(REASON in line for line in signature):
            found.append(f"{module.place}:{node.lineno} {node.name}: {count} parameters")
    return found


def _functions(root: Path) -> Iterator[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for module in modules(root).values():
        for node in module.statements:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield module, node
