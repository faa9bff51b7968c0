"""The modules of the product: syntax trees, names and imports, without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("luwu", "switch_emu", "workers")


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements below a node: a tenth of the nodes that `ast.walk` visits."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, field, None)
        for each in inner if isinstance(inner, list) else ():
            if isinstance(each, ast.stmt):
                yield each
            yield from statements(each)


@dataclass(frozen=True)
class Module:
    """One file: where it lies, its dotted name and its syntax tree."""

    root: Path
    path: Path
    name: str
    is_package: bool

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def statements(self) -> list[ast.stmt]:
        return list(statements(self.tree))

    @cached_property
    def imports(self) -> list[tuple[str, str, str]]:
        """(local name, source, name in it or "") of every import, wherever it stands."""
        found = []
        for node in self.statements:
            if isinstance(node, ast.Import):
                found += [(alias.asname or alias.name, alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(node)
                found += [(alias.asname or alias.name, source, alias.name) for alias in node.names]
        return found

    def _absolute(self, node: ast.ImportFrom) -> str:
        """The dotted name that a `from` names."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parts, node.module] if node.module else parts)

    @property
    def place(self) -> str:
        """The path from the repository's root, as a person writes it."""
        return self.path.relative_to(self.root).as_posix()

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""


@cache
def modules(root: Path, folders: tuple[str, ...] = PRODUCT) -> dict[str, Module]:
    """All modules below `folders` of `root`, by dotted name."""
    found = {}
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            found[name] = Module(root, path, name, is_package)
    return found


@pytest.fixture(scope="module", autouse=True)
def no_syntax_tree_is_left() -> Iterator[None]:
    """The garbage collector would look at all of them in every test that comes after these."""
    yield
    modules.cache_clear()


def imported(module: Module, known: dict[str, Module]) -> Iterator[tuple[str, str, str]]:
    """(local name, module, name in that module or "") for each import of a known module.

    `from luwu.base import clock` imports the module `luwu.base.clock`; an import that serves type
    checkers alone, or that stands in a function, counts like any other.
    """
    for local, source, name in module.imports:
        if f"{source}.{name}" in known:
            yield local, f"{source}.{name}", ""
        elif source in known:
            yield local, source, name


def definition(module: str, name: str, known: dict[str, Module]) -> tuple[str, str]:
    """Where a name of a module is defined, through the packages that only pass it on."""
    for _ in range(8):
        if module not in known:
            break
        if any(isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name
               for n in known[module].tree.body):  # fmt: skip
            break
        passed = [(m, n) for local, m, n in imported(known[module], known) if local == name and n]
        if not passed:
            break
        module, name = passed[0]
    return module, name
