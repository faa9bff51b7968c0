"""Published results of what was predicted blind, beside the frozen prediction and that of today.

`data/calibration/blind.toml` has them by the row's name. Since they were seen, the model was mended
with them: they calibrate it. A row counts by its signed error, as in `calibration.py`, or by
whether it holds: a bound from below, a range, the class of the largest model.
"""

from __future__ import annotations

from typing import Any

from luwu.predict.check.blind import networks, questions, testbed
from luwu.predict.check.blind.rows import BlindRow
from luwu.predict.check.calibration import Compared, read
from luwu.predict.hardware.catalogue import Catalogue

FAMILIES = ("training", "memory", "inference", "testbed", "networks")


def blind_rows(catalogue: Catalogue) -> list[BlindRow]:
    """Predictions of the first set by the model of today."""
    asked = questions.rows(catalogue, questions.SETS[0])
    return [*asked, *testbed.rows(catalogue), *networks.rows(catalogue)]


def seen_rows(catalogue: Catalogue) -> list[dict[str, Any]]:
    """Rows with a published result."""
    found = {row.name: row for row in blind_rows(catalogue)}
    data, shown = read("blind.toml"), []
    reasons = {name: each["why"] for each in data["left_out"] for name in each["rows"]}
    for family in FAMILIES:
        for name, published, frozen, tag in data[family]["rows"]:
            row = found[name]
            one: dict[str, Any] = {
                "family": family, "group": row.group, "name": name, "unit": row.unit, "tag": tag,
                "published": published, "frozen": frozen, "predicted": row.value,
                "frozen_error": _error(row, published, frozen),
                "error": _error(row, published, row.value), "left_out": reasons.get(name, ""),
                "holds": holds(data["bounds"], name, published, row.value),
            }  # fmt: skip
            shown.append(one)
    return shown


def _error(row: BlindRow, published: float, predicted: float) -> float:
    is_rate = "/s" in row.unit or row.unit == "share"
    return Compared(
        group=row.group, name=row.name, unit=row.unit, published=published, predicted=predicted,
        is_rate=is_rate and row.group != "Networks",
    ).error  # fmt: skip


def holds(bounds: dict[str, Any], name: str, published: float, predicted: float) -> bool | None:
    """Of a row that is a bound, a range or a class; None of all others."""
    if name in bounds["at_least"]:
        return predicted >= published
    for each, low, high in bounds["ranges"]:
        if each == name:
            return bool(low <= predicted <= high)
    if name in bounds["largest"]:
        classes = [[c for c in bounds["classes"] if c <= size] for size in (published, predicted)]
        return classes[0] == classes[1]
    return None


def wrong_winners(rows: list[dict[str, Any]]) -> list[str]:
    """Pairs whose order was published and is predicted the other way, and ratios of two systems on
    the other side of 1."""
    by_name = {row["name"]: row for row in rows}
    names = read("blind.toml")["bounds"]["winners"]
    pairs = [(by_name[one], by_name[other]) for one, other in names]
    found = [
        f"{one['name']} is more than {other['name']}"
        for one, other in pairs
        if one["predicted"] <= other["predicted"]
    ]
    return found + [
        row["name"]
        for row in rows
        if row["unit"] == "ratio" and (row["published"] - 1) * (row["predicted"] - 1) < 0
    ]
