"""Texts that name code: maps in docstrings of packages, and the architecture page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.house.source import modules

MAP_MODULES_MAX = 6
"""Packages of more modules than these have a map."""
ARCHITECTURE = "docs/architecture.md"
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(
    r"(?P<path>[\w./-]+\.(?:py|c|h|md|toml|json))(?::(?P<name>[A-Za-z_]\w*(?:\.\w+)*))?"
)
FOLDER = re.compile(r"(?P<path>[\w-]+(?:/[\w-]+)*)/")
DOTTED = re.compile(r"(?:luwu|switch_emu|workers)(?:\.\w+)+")


def packages_without_map(root: Path) -> list[str]:
    """Packages of more than six modules whose docstring does not name each of them as `name.py`,
    and each package in it as `name/`."""
    known = modules(root)
    found = []
    for name, package in known.items():
        if not package.is_package:
            continue
        inside = [m for m in known.values() if m.name.rpartition(".")[0] == name]
        wanted = {m.path.parent.name + "/" if m.is_package else m.path.name for m in inside}
        wanted.discard("__main__.py")
        named = set(re.findall(r"\w+(?:\.py|/)", package.docstring))
        if len(wanted) > MAP_MODULES_MAX and not wanted <= named:
            found.append(f"{package.place}: {', '.join(sorted(wanted - named))}")
    return found


def names_that_do_not_exist(root: Path, page: str = ARCHITECTURE) -> list[str]:
    """Files, folders, modules, and functions of files that the page cites in code and that are
    not there: `path.py`, `folder/`, `package.module`, and `path.py:name`, where the name is a
    function or class of the file, or `Class.method`."""
    known = modules(root)
    found = []
    for number, line in enumerate((root / page).read_text(encoding="utf-8").splitlines(), 1):
        for text in CODE.findall(line):
            if not _exists(root, text, set(known)):
                found.append(f"{page}:{number} `{text}`")
    return found


def _exists(root: Path, text: str, known: set[str]) -> bool:
    """Whether what the text names is there; a text that names no place of the code is."""
    if match := FILE.fullmatch(text):
        path = root / match["path"]
        if not path.is_file():
            return False
        return match["name"] is None or match["name"] in _names(path)
    if match := FOLDER.fullmatch(text):
        return (root / match["path"]).is_dir()
    if DOTTED.fullmatch(text):
        module, _, name = text.rpartition(".")
        return text in known or (module in known and name in _text_names(root, module))
    return True


def _names(path: Path) -> set[str]:
    """Functions, classes, methods with and without their class, and constants of a file."""
    if path.suffix != ".py":
        return set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(f"{node.name}.{inner.name}")
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _text_names(root: Path, module: str) -> set[str]:
    """Every word of a module's file: lazy names of packages stand in tables."""
    path = root / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
