"""All kinds have a scenario, and the page names it."""

from __future__ import annotations

import re

import pytest

from tests.faults.kinds import KINDS
from tests.features import ROOT, collect

PAGE = ROOT / "docs" / "reliability.md"


@pytest.fixture(scope="module")
def scenarios() -> dict[int, list[str]]:
    """Number of a kind -> names of its tests, of the whole suite."""
    return collect("faults")


def test_each_kind_has_a_scenario(scenarios: dict[int, list[str]]) -> None:
    """Goal: all of them."""
    assert list(KINDS) == list(range(1, len(KINDS) + 1))
    assert sorted(scenarios) == list(KINDS)


def test_the_page_lists_each_kind(scenarios: dict[int, list[str]]) -> None:
    """Goal: docs/reliability.md has a row of each kind, in its words, with a scenario of it."""
    rows = re.findall(r"^\| (\d+) \| ([^|]*) \| [^|]* \| `([^`]*)`", PAGE.read_text(), re.MULTILINE)
    assert {int(number): kind for number, kind, _ in rows} == KINDS
    for number, _, test in rows:
        assert f"tests/{test}" in scenarios[int(number)]
