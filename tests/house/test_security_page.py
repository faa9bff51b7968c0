"""docs/security.md: a row for each threat, and every test that a row names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
THREATS_COUNT = 22
ROWS = {
    int(found[1]): found[0]
    for found in re.finditer(r"^\| (\d+) \| .* \| .* \| .* \|$", PAGE, re.MULTILINE)
}
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)


def functions_of(path: Path) -> set[str]:
    """Names of the tests of a file, in classes or not."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_threat_has_its_row() -> None:
    assert sorted(ROWS) == list(range(1, THREATS_COUNT + 1))


@pytest.mark.parametrize("number", sorted(ROWS))
def test_every_row_names_a_test(number: int) -> None:
    """Goal: no defence is only said."""
    assert re.search(r"`[\w/]+\.py::test_\w+`", ROWS[number]), ROWS[number]


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_every_named_test_is_there(file: str, name: str) -> None:
    path = ROOT / "tests" / file
    assert path.is_file(), file
    assert name in functions_of(path), f"{file} has no {name}"


def test_nothing_that_looks_like_a_test_escapes() -> None:
    """Goal: a name that is written in another way is not passed over."""
    assert len(NAMED) == PAGE.count("::")
