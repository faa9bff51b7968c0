"""Errors of frozen predictions, and of today's where a row is a question of the model.

`docs/predict/blind.json` has what was predicted, `published.json` what was published of it. A row
counts by its signed error, as in `luwu predict validate`, or by whether it holds: a bound from
below, a range, the class of the largest model. The model was mended with these results, so only the
frozen predictions were blind.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks.blind.predicted import predicted
from luwu.predict.check.calibration import Compared
from luwu.predict.hardware.catalogue import Catalogue

FROZEN: Final = Path(__file__).parents[2] / "docs" / "predict" / "blind.json"
PUBLISHED: Final = Path(__file__).with_name("published.json")


def scored(catalogue: Catalogue) -> list[dict[str, Any]]:
    """All rows with a published result; `error` is of today, None where a row is no question."""
    frozen = {row["name"]: row for row in _read(FROZEN)["rows"]}
    document, found = _read(PUBLISHED), []
    for row in document["rows"]:
        made, published = frozen[row["name"]], row["published"]
        today = predicted(row, catalogue) if "question" in row else None
        found.append({
            "family": row["family"], "group": made["group"], "name": row["name"],
            "unit": made["unit"], "tag": row["tag"], "published": published,
            "frozen": made["value"], "predicted": today,
            "frozen_error": _error(made, published, made["value"]),
            "error": None if today is None else _error(made, published, today),
            "left_out": row.get("left_out", ""),
            "question": row.get("question"),
            "holds": holds(
                row.get("bound"), published, made["value"] if today is None else today,
                document["classes"],
            ),
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


def wrong_winners(rows: list[dict[str, Any]], key: str) -> list[str]:
    """Pairs whose order was published and is the other way by `frozen` or `predicted`."""
    by_name = {row["name"]: row for row in rows}
    return [
        f"{one} is more than {other}"
        for one, other in _read(PUBLISHED)["winners"]
        if None not in (first := by_name[one][key], second := by_name[other][key])
        and first <= second
    ]


def text(rows: list[dict[str, Any]]) -> str:
    """All rows, and the errors of each group, for people."""
    lines = ["published, frozen, of today; error of the frozen one", ""]
    for row in rows:
        said = "" if row["holds"] is None else "holds" if row["holds"] else "does not hold"
        today = "-" if row["predicted"] is None else f"{row['predicted']:,.4g}"
        left_out = f" (left out: {row['left_out']})" if row["left_out"] else ""
        lines.append(
            f"{row['name']:<80} {row['published']:>9,.4g} {row['frozen']:>9,.4g} {today:>9} "
            f"{row['unit']} {row['tag']} {said or format(row['frozen_error'], '+7.1%')}{left_out}"
        )
    lines.append("")
    for name in dict.fromkeys(row["group"] for row in rows):
        errors = [abs(row["frozen_error"]) for row in counting(rows) if row["group"] == name]
        if errors:
            within = f"{mean(errors):.1%} in the mean, {max(errors):.1%} at most"
            lines.append(f"{name:<24} {len(errors):>3} rows, {within}")
    return "\n".join(lines)


def _error(made: dict[str, Any], published: float, value: float) -> float:
    is_rate = "/s" in made["unit"] or made["unit"] == "share"
    return Compared(
        group=made["group"], name=made["name"], unit=made["unit"], published=published,
        predicted=value, is_rate=is_rate and made["group"] != "Networks",
    ).error  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
