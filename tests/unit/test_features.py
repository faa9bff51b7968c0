"""The page of features is made of the tests that are there."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.features import ROOT, page, problems

GROUPS: list[dict[str, Any]] = [
    {"title": "Some", "rows": [["one", "works", ""], ["two", "refused", "because"]]}
]


def test_features_are_shown_by_tests() -> None:
    """Goal: docs/features.md is up to date, every row has a collected test, every mark a row."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.features", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]


def test_rows_and_marks_must_fit() -> None:
    """Goal: each way in which they may not is named."""
    tests = {"one": ["tests/a.py::test", "tests/b.py::test"], "two": ["tests/c.py::test"]}
    assert problems(GROUPS, tests) == []
    assert "| one | works | `a.py::test` and 1 more |" in page(GROUPS, tests)
    assert "| two | refused: because | `c.py::test` |" in page(GROUPS, tests)
    wrong: list[dict[str, Any]] = [
        {
            "title": "Some",
            "rows": [["one", "maybe", ""], ["one", "works", ""], ["nine", "works", ""]],
        }
    ]
    assert problems(wrong, tests) == [
        "mark 'two' is no row of docs/features.toml",
        "row 'nine' has no test",
        "row 'one' stands twice",
        "row 'one': 'maybe' is not one of works, refused",
    ]
