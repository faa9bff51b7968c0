"""docs/features.md: what works and what is refused, each row with the tests that show it.

    python -m tests.features            write the page
    python -m tests.features --check    fail if it is not what it should be

Rows stand in docs/features.toml; tests say which row they show by `@pytest.mark.feature("...")`. A
row without a collected test, and a mark that is no row, are errors.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

ROOT = Path(__file__).resolve().parents[1]
ROWS, PAGE = ROOT / "docs" / "features.toml", ROOT / "docs" / "features.md"
OUTCOMES = ("works", "refused")
HEAD = """\
# Features

What users of PyTorch, of FSDP2 and of emulated networks expect: it works, or it is refused with a
sentence that says what to do instead. Each row names a test that shows it. Made by
`python -m tests.features`; do not edit.
"""


def collect(mark: str = "feature") -> dict[Any, list[str]]:
    """Argument of the mark -> names of the tests that have it, as pytest takes them.

    Read from the syntax tree: the whole suite takes pytest a quarter of a minute to collect.
    """
    tests: dict[Any, list[str]] = defaultdict(list)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if f"mark.{mark}(" in text:
            for name, decorators in _tests(ast.parse(text), str(file.relative_to(ROOT)), []):
                for argument in _arguments(decorators, mark):
                    if name not in tests[argument]:
                        tests[argument].append(name)
    return tests


def _tests(tree: Any, place: str, outer: list[ast.expr]) -> Iterator[tuple[str, list[ast.expr]]]:
    """Names of the tests in a module or class, each with all that decorates it."""
    outer = [*outer, *(node.value for node in tree.body if _is_pytestmark(node))]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _tests(node, f"{place}::{node.name}", [*outer, *node.decorator_list])
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield f"{place}::{node.name}", [*outer, *node.decorator_list]


def _is_pytestmark(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


def _arguments(decorators: list[ast.expr], mark: str) -> Iterator[Any]:
    """The argument of each mark of that name, those of single parameters included."""
    for node in (each for decorator in decorators for each in ast.walk(decorator)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{mark}":
            (argument,) = node.args
            yield ast.literal_eval(argument)


def problems(groups: list[dict[str, Any]], tests: dict[str, list[str]]) -> list[str]:
    """What is wrong between rows and marks."""
    names = [row[0] for group in groups for row in group["rows"]]
    found = [f"row {name!r} stands twice" for name in {n for n in names if names.count(n) > 1}]
    found += [f"row {name!r} has no test" for name in names if name not in tests]
    found += [
        f"mark {name!r} is no row of docs/features.toml" for name in tests.keys() - set(names)
    ]
    found += [
        f"row {row[0]!r}: {row[1]!r} is not one of {', '.join(OUTCOMES)}"
        for group in groups
        for row in group["rows"]
        if row[1] not in OUTCOMES
    ]
    return sorted(found)


def page(groups: list[dict[str, Any]], tests: dict[str, list[str]]) -> str:
    """The page's text."""
    lines = [HEAD]
    for group in groups:
        lines += [f"## {group['title']}", "", "| | | shown by |", "|---|---|---|"]
        for name, outcome, note in group["rows"]:
            test = tests[name][0].removeprefix("tests/")
            more = f" and {len(tests[name]) - 1} more" if len(tests[name]) > 1 else ""
            text = f"{outcome}: {note}" if note else outcome
            lines.append(f"| {name} | {text} | `{test}`{more} |")
        lines.append("")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code."""
    groups = tomllib.loads(ROWS.read_text(encoding="utf-8"))["group"]
    tests = collect()
    found = problems(groups, tests)
    if not found:
        text = page(groups, tests)
        if "--check" not in arguments:
            PAGE.write_text(text, encoding="utf-8")
        elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            found = [f"{PAGE.name} is not up to date: run python -m tests.features"]
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
