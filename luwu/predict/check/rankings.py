"""Does a prediction put in order what was measured? Rank correlation of published and predicted.

Kendall's tau-b: of all pairs, those that both put in the same order less those in another one, over
the geometric mean of the pairs that each tells apart. 1: the same order; -1: the opposite one.
Source: Kendall, Rank Correlation Methods, 1948.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any


def kendall_tau(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Kendall's tau of two lists of the same things. None if one of them has equal values only."""
    agreed, told, told_by_other = 0, 0, 0
    for (a, b), (c, d) in combinations(zip(one, other, strict=True), 2):
        first, second = (a > c) - (a < c), (b > d) - (b < d)
        agreed += first * second
        told += first != 0
        told_by_other += second != 0
    if not told or not told_by_other:
        return None
    return agreed / math.sqrt(told * told_by_other)


def rankings(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rankings of all groups of comparable rows: those of one source in one unit, in their
    order.
    """
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        key = row["group"], row["unit"]
        groups.setdefault(key, []).append((row["published"], row["predicted"]))
    found = []
    for (group, unit), pairs in groups.items():
        tau = kendall_tau([each[0] for each in pairs], [each[1] for each in pairs])
        if tau is not None:
            found.append({"group": group, "unit": unit, "rows": len(pairs), "tau": tau})
    return found
