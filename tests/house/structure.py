"""What modules may not do: import in a circle, have a class of a core that inherits from another of
the project, hide a module of the standard library."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.house.source import Module, definition, imported, modules

CORES = ("luwu.protocol", "luwu.nic.core", "switch_emu.switch.core", "switch_emu.node.core")
PLAIN_BASES = {
    "BaseException", "Enum", "Exception", "Flag", "IntEnum", "IntFlag", "NamedTuple", "Protocol",
    "StrEnum",
}  # fmt: skip
"""What a class of a core, or a base of it, may inherit from."""
PLAIN_MODULES = ("luwu.wire", "luwu.base.errors")
"""Messages and errors."""
FOLDERS = ("workers", "benchmarks", "docs/examples")
"""Their scripts are run by path, which puts the script's folder first where Python imports from."""


def in_core(name: str) -> bool:
    return any(name == core or name.startswith(core + ".") for core in CORES)


def classes_that_inherit(root: Path) -> list[str]:
    """Classes of cores with a base of the project that is no enum, protocol, error or message."""
    known = modules(root)
    found = []
    for name, module in known.items():
        if not in_core(name):
            continue
        for node in module.statements:
            if not isinstance(node, ast.ClassDef):
                continue
            bases = [b for b in _bases(module, node, known) if not _is_plain(*b, known)]
            if bases:
                names = ", ".join(base for _, base in bases)
                found.append(f"{module.place}:{node.lineno} {node.name}({names})")
    return found


def _bases(
    module: Module, node: ast.ClassDef, known: dict[str, Module]
) -> Iterator[tuple[str, str]]:
    """(module, name) of each base that the project defines."""
    names = {local: (source, name) for local, source, name in imported(module, known)}
    for base in node.bases:
        text = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        prefix, _, last = text.rpartition(".")
        if prefix in names:
            yield definition(names[prefix][0], last, known)
        elif text in names and names[text][1]:
            yield definition(*names[text], known)
        elif _class(module, text) is not None:
            yield module.name, text


def _class(module: Module, name: str) -> ast.ClassDef | None:
    for node in module.statements:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    return None


def _is_plain(module: str, name: str, known: dict[str, Module]) -> bool:
    """Whether a base is an enum, a tuple, a protocol, an error or a message."""
    if any(module == plain or module.startswith(plain + ".") for plain in PLAIN_MODULES):
        return True
    node = _class(known[module], name) if module in known else None
    if node is None:
        return False
    for base in node.bases:
        text = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        if text.rpartition(".")[2] in PLAIN_BASES:
            return True
    return any(_is_plain(*base, known) for base in _bases(known[module], node, known))


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


def modules_that_hide_others(root: Path) -> list[str]:
    """Modules beside scripts that are named like one of the standard library."""
    return [
        path.relative_to(root).as_posix()
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        if path.stem in sys.stdlib_module_names
    ]
