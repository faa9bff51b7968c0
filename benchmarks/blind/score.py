"""Errors of the first set of frozen predictions.

`docs/predict/blind.json` has what was predicted, `published.json` what was published of it. A row
counts by its signed error, as in `benchmarks.calibration`, or by whether it holds: a bound from
below, a range, the class of the largest model. The model was mended with these results, which
calibrate it now, so only the frozen predictions were blind.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks.calibration import signed_error

FROZEN: Final = Path(__file__).parents[2] / "docs" / "predict" / "blind.json"
PUBLISHED: Final = Path(__file__).with_name("published.json")


def scored() -> list[dict[str, Any]]:
    """All rows with a published result."""
    frozen = {row["name"]: row for row in _read(FROZEN)["rows"]}
    document, found = _read(PUBLISHED), []
    for row in document["rows"]:
        made, published = frozen[row["name"]], row["published"]
        rate = ("/s" in made["unit"] or made["unit"] == "share") and made["group"] != "Networks"
        found.append({
            "family": row["family"], "group": made["group"], "name": row["name"],
            "unit": made["unit"], "tag": row["tag"], "published": published,
            "frozen": made["value"],
            "frozen_error": signed_error(published, made["value"], rate=rate),
            "left_out": row.get("left_out", ""),
            "holds": holds(row.get("bound"), published, made["value"], document["classes"]),
        })  # fmt: skip
    return found


def counting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those whose errors are in means."""
    return [row for row in rows if not row["left_out"] and row["holds"] is None]


def holds(bound: Any, published: float, value: float, classes: list[float]) -> bool | None:
    """True if a value is as published: at least so much, in a range, in the same class; None of a
    row that counts by its error."""
    if bound is None:
        return None
    if bound == "at least":
        return value >= published
    if bound == "class":
        found = [[each for each in classes if each <= size] for size in (published, value)]
        return found[0] == found[1]
    low, high = bound
    return bool(low <= value <= high)


def wrong_winners(rows: list[dict[str, Any]]) -> list[str]:
    """Pairs whose order was published, and was the other way when it was frozen."""
    frozen = {row["name"]: row["frozen"] for row in rows}
    winners = _read(PUBLISHED)["winners"]
    return [f"{one} is more than {other}" for one, other in winners if frozen[one] <= frozen[other]]


def text(rows: list[dict[str, Any]]) -> str:
    """All rows, and the errors of each group, for people."""
    lines = ["published, frozen; error", ""]
    for row in rows:
        said = "" if row["holds"] is None else "holds" if row["holds"] else "does not hold"
        left_out = f" (left out: {row['left_out']})" if row["left_out"] else ""
        lines.append(
            f"{row['name']:<80} {row['published']:>9,.4g} {row['frozen']:>9,.4g} "
            f"{row['unit']} {row['tag']} {said or format(row['frozen_error'], '+7.1%')}{left_out}"
        )
    lines.append("")
    for name in dict.fromkeys(row["group"] for row in rows):
        errors = [abs(row["frozen_error"]) for row in counting(rows) if row["group"] == name]
        if errors:
            within = f"{mean(errors):.1%} in the mean, {max(errors):.1%} at most"
            lines.append(f"{name:<24} {len(errors):>3} rows, {within}")
    return "\n".join(lines)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
