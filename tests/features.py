"""docs/features.md: what works and what is refused, each row with the tests that show it.

    python -m tests.features            write the page
    python -m tests.features --check    fail if it is not what it should be

Rows stand in docs/features.toml; tests say which row they show by `@pytest.mark.feature("...")`. A
row without a collected test, and a mark that is no row, are errors.
"""

from __future__ import annotations

import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROWS, PAGE = ROOT / "docs" / "features.toml", ROOT / "docs" / "features.md"
OUTCOMES = ("works", "refused")
HEAD = """\
# Features

What users of PyTorch, of FSDP2 and of emulated networks expect: it works, or it is refused with a
sentence that says what to do instead. Each row names a test that shows it. Made by
`python -m tests.features`; do not edit.
"""


class Collector:
    """A pytest plugin that notes the marks of one name on what is collected."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self.tests: dict[Any, list[str]] = defaultdict(list)
        """Argument of the mark -> names of tests, as pytest takes them."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """pytest has collected."""
        for item in session.items:
            for mark in item.iter_markers(self._mark):
                (name,) = mark.args
                test = item.nodeid.partition("[")[0]
                if test not in self.tests[name]:
                    self.tests[name].append(test)


def collect(mark: str = "feature") -> dict[Any, list[str]]:
    """The marked tests of the whole suite; files without a mark are not even imported."""
    collector = Collector(mark)
    files = [
        str(file)
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if f"mark.{mark}(" in file.read_text(encoding="utf-8")
    ]
    code = pytest.main(
        ["--collect-only", "-qq", "--no-header", "-p", "no:cacheprovider", *files],
        plugins=[collector],
    )
    if code != 0:
        raise SystemExit(f"the tests cannot be collected (pytest ended with {code})")
    return collector.tests


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
