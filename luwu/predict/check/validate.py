"""Published results beside predictions, all families: signed errors, and what they come to.

Of each family and each group of its rows the mean and the maximum of errors, and whether rows of
one source in one unit keep their order. All rows calibrate the model; how good it was at what it
had not seen, `python -m benchmarks.blind` says.

Order is Kendall's tau-b: of all pairs, those that both put in the same order less those in another
one, over the geometric mean of the pairs that each tells apart. 1: the same order; -1: the opposite
one. Source: Kendall, Rank Correlation Methods, 1948.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import mean
from typing import Any

from luwu.predict.check.calibration import (
    Compared,
    compare,
    compare_inference,
    compare_memory,
    compare_offload,
    training_rows,
)
from luwu.predict.hardware.catalogue import Catalogue

SCHEMA = 3
"""3: without rows that were predicted blind; 2: a summary of each group."""


def document(catalogue: Catalogue) -> dict[str, Any]:
    """All rows by family, and a summary of each."""
    families: dict[str, list[dict[str, Any]]] = {
        "training": [
            {
                "group": row.group, "model": row.job.model.name,
                "system": row.system, "device": row.job.device.name,
                "devices": row.job.devices, "precision": row.job.precision,
                "recompute": row.job.recompute, "unit": row.unit,
                "published": row.published, "predicted": each.predicted,
                "error": each.error, "source": row.source,
            }
            for row in training_rows(catalogue)
            for each in [compare(row)]
        ],
        "memory": [_named(each) for each in compare_memory(catalogue)],
        "offload": [_named(each) for each in compare_offload(catalogue)],
        "inference": [
            _named(each) | {"source": each.source} for each in compare_inference(catalogue)
        ],
    }  # fmt: skip
    summary = {name: _summary(rows) for name, rows in families.items()}
    return {"schema": SCHEMA, **families, "summary": summary}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    return {
        **_errors(rows),
        "rankings": rankings(rows),
        "groups": [{"group": name, **_errors(own)} for name, own in groups.items()],
    }  # fmt: skip


def _errors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The number of rows, their mean error and the largest."""
    errors = [abs(row["error"]) for row in rows]
    return {"rows": len(errors), "mean": mean(errors), "max": max(errors)}


def _named(each: Compared) -> dict[str, Any]:
    return {
        "group": each.group, "name": each.name, "unit": each.unit, "published": each.published,
        "predicted": each.predicted, "error": each.error,
    }  # fmt: skip


def text(found: dict[str, Any]) -> str:
    """The document for people."""
    lines = [
        f"{row['group']:<3} {row['model']:<14} {row['system']:<6} {row['devices']:>5} x "
        f"{row['device']:<13} {row['precision']} {row['recompute']:<9} {row['published']:>9,.2f} "
        f"{row['predicted']:>9,.2f} {row['unit']:<8} {row['error']:+7.1%}"
        for row in found["training"]
    ]
    lines += ["", *(f"{row['name']:<34} {row['error']:+7.2%}" for row in found["memory"]), ""]
    for row in found["offload"]:
        published, predicted = f"{row['published']:6.2f}", f"{row['predicted']:6.2f}"
        lines.append(f"{row['name']:<34} {published} {predicted} {row['error']:+7.1%}")
    lines.append("")
    for row in found["inference"]:
        published, predicted = f"{row['published']:9,.2f}", f"{row['predicted']:9,.2f}"
        lines.append(
            f"{row['name']:<48} {published} {predicted} {row['unit']} {row['error']:+7.1%}"
        )
    lines.append("")
    for name, each in found["summary"].items():
        lines.append(f"{name}: {each['rows']} rows, {_within(each)}")
        for one in each["groups"]:
            lines.append(f"  {one['group']:<22} {one['rows']:>3} rows, {_within(one)}")
        orders = [f"{one['group']} {one['tau']:+.2f} ({one['rows']})" for one in each["rankings"]]
        lines.append(f"  rank correlation by group (rows): {', '.join(orders) or '-'}")
    return "\n".join(lines)


def _within(each: dict[str, Any]) -> str:
    return f"{each['mean']:.1%} in the mean, {each['max']:.1%} at most"


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
    order."""
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
