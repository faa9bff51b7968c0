"""Published results beside predictions, all families: signed errors, and what they come to.

Of each family and each group of its rows the mean and the maximum of errors, and whether rows of
one source in one unit keep their order (`rankings.py`). All rows calibrate the model; how good it
was at what it had not seen, `python -m benchmarks.blind` says.
"""

from __future__ import annotations

from statistics import mean
from typing import Any

from luwu.predict.check.calibration import Compared, compare, compare_memory, training_rows
from luwu.predict.check.inference_calibration import compare_inference
from luwu.predict.check.offload_calibration import compare_offload
from luwu.predict.check.rankings import rankings
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
