"""Seeds of a simulation: the first few in every run of the tests, the others marked slow."""

from __future__ import annotations

from typing import Any

import pytest

SHARE = 10
"""One seed in so many is tried in every run of the tests; campaigns try thousands of others."""
FEWEST = 2


def seeds(count: int, *, quick: int | None = None) -> list[Any]:
    """The seeds 0 to `count` - 1, for a test's parameter; the first `quick` are not slow."""
    if quick is None:
        quick = max(FEWEST, count // SHARE)
    return [
        pytest.param(seed, marks=() if seed < quick else pytest.mark.slow) for seed in range(count)
    ]
