"""All kinds of faults that the page lists have a scenario, marked `faults(number)`.

Most are in this directory; `pytest -m faults` runs all, and tests elsewhere that show the same kind
in another way.
"""

from __future__ import annotations

import re

from tests.features import ROOT, collect

PAGE = ROOT / "docs" / "reliability.md"


def test_each_kind_has_a_scenario() -> None:
    """Goal: docs/reliability.md numbers the kinds, and names a scenario of each."""
    scenarios = collect("faults")
    rows = re.findall(r"^\| (\d+) \| [^|]* \| [^|]* \| `([^`]*)`", PAGE.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == sorted(scenarios)
    assert sorted(scenarios) == list(range(1, len(rows) + 1))
    for number, test in rows:
        assert f"tests/{test}" in scenarios[int(number)]
