"""Tests of one mark as a campaign: `python -m tests.marked index`.

The last line is `N trials, V violations`: a trial is a test, one that fails or cannot be set up is
a violation. No test at all is a violation too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


class Counts:
    """A pytest plugin that counts tests by their ends."""

    def __init__(self) -> None:
        self.trials, self.violations = 0, 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test is over."""
        self.trials += report.when == "call" and not report.skipped
        self.violations += report.failed


def main(arguments: Sequence[str]) -> int:
    """Run the tests of a mark; the exit code."""
    (mark,) = arguments
    counts = Counts()
    files = [
        str(file)
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if f"mark.{mark}\n" in file.read_text(encoding="utf-8")
    ]
    code = pytest.main(["-m", mark, "-n", "0", "-p", "no:cacheprovider", *files], plugins=[counts])
    if code != 0:
        counts.violations = max(1, counts.violations)
    print(f"{counts.trials} trials, {counts.violations} violations")
    return 1 if counts.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
