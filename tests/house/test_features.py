"""The page of features is made of the tests that are there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.features import main, page, problems

GROUPS: list[dict[str, Any]] = [
    {"title": "Some", "rows": [["one", "works", ""], ["two", "rejected", "because"]]}
]


def test_features_are_shown_by_tests(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: docs/features.md is up to date, every row has a test, every mark a row."""
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_rows_and_marks_must_fit() -> None:
    """Goal: each way in which they may not is named."""
    tests = {"one": ["tests/a.py::test", "tests/b.py::test"], "two": ["tests/c.py::test"]}
    assert problems(GROUPS, tests) == []
    assert "| one | works | `a.py::test` and 1 more |" in page(GROUPS, tests)
    assert "| two | rejected: because | `c.py::test` |" in page(GROUPS, tests)
    wrong: list[dict[str, Any]] = [
        {
            "title": "Some",
            "rows": [["one", "maybe", ""], ["one", "works", ""], ["nine", "works", ""]],
        }
    ]
    assert problems(wrong, tests) == [
        "mark 'two' is not a row of docs/features.toml",
        "row 'nine' has no test",
        "row 'one' is listed twice",
        "row 'one': 'maybe' is not one of works, rejected",
    ]
