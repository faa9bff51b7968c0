"""Intervals of 80 % about a predicted value, from how far off the second set of blind rows was.

An interval goes from value / f to value * f, where f is the factor within which 80 % of the rows of
its family in `docs/predict/blind-2.json` were of what was published of them (`published-2.json`);
of all of these rows, where none is of its family.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from functools import cache
from typing import Any, Final

from benchmarks.blind.score import FROZEN, PUBLISHED
from benchmarks.calibration import NETWORK

SHARE: Final = 0.8
_ALL: Final = ""


def family(configuration: dict[str, Any]) -> str:
    """By system and quantity."""
    quantity = configuration["quantity"]
    if quantity in NETWORK:
        return "network"
    if not configuration["question"]["system"].startswith("inference"):
        return "training"
    return next((each for each in ("first token", "between tokens") if each in quantity), "rate")


@cache
def factors() -> dict[str, float]:
    """f of each family, and of all rows."""
    document = json.loads(FROZEN.with_name("blind-2.json").read_text(encoding="utf-8"))
    published = json.loads(PUBLISHED.with_name("published-2.json").read_text(encoding="utf-8"))
    errors = defaultdict[str, list[float]](list)
    for row in document["rows"]:
        if row["name"] in published:
            error = abs(math.log(row["value"] / published[row["name"]]))
            errors[family(row["configuration"])].append(error)
            errors[_ALL].append(error)
    return {
        name: math.exp(sorted(each)[math.ceil(SHARE * len(each)) - 1])
        for name, each in errors.items()
    }


def interval(configuration: dict[str, Any], value: float) -> tuple[float, float]:
    """The least and the largest value of the interval."""
    known = factors()
    factor = known.get(family(configuration), known[_ALL])
    return value / factor, value * factor
