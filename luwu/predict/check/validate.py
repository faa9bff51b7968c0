"""Published results beside predictions of the same, all families: how far off the model is.

Each row of `data/calibration.toml` is a question; the same code answers it that answers a user.
All rows calibrate the model; `python -m benchmarks.blind` shows how good it was at what it had not
seen.

Order is Kendall's tau-b: of all pairs, those that both put in the same order less those in another
one, over the geometric mean of the pairs that each tells apart. 1: the same order; -1: the opposite
one. Source: Kendall, Rank Correlation Methods, 1948.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from operator import itemgetter
from statistics import mean
from typing import Any, Final, TypeAlias

from luwu.predict.check.quantities import is_rate, predicted, signed_error
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.software import data

_Groups: TypeAlias = dict[Any, list[dict[str, Any]]]
SCHEMA: Final = 4
"""4: every row is a quantity of a question; those that were predicted blind are among them."""
_OF_GROUP: Final = ("family", "source", "series")
_OF_SERIES: Final = ("quantity", "over", "keys", "rows")
_NAMED: Final = (
    "system", "model", "precision", "recompute", "devices", "tensor", "pipeline", "sockets",
    "batch", "input_tokens", "output_tokens", "parameters",
)  # fmt: skip
"""Keys that set a row apart from others."""


def rows(catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    """All rows, with what is predicted of each. Raises ConfigError."""
    for group, table in data("calibration.toml").items():
        shared = {key: value for key, value in table.items() if key not in _OF_GROUP}
        for series in table["series"]:
            keys = {**shared, **series}
            for *values, published in series["rows"]:
                question = {key: value for key, value in keys.items() if key not in _OF_SERIES}
                question |= zip(series.get("keys", ()), values, strict=True)
                row: dict[str, Any] = {"quantity": keys["quantity"], "question": question}
                if "over" in series:
                    row["over"] = {**question, **series["over"]}
                value = predicted(row, catalogue)
                yield {
                    "family": table["family"], "group": group, "name": _name(question), **row,
                    "published": published, "predicted": value, "source": table["source"],
                    "error": signed_error(published, value, rate=is_rate(keys["quantity"])),
                }  # fmt: skip


def _name(question: dict[str, Any]) -> str:
    """The row for people."""
    on = question.get("device", question.get("processor"))
    said = [f"{key} {question[key]}" if type(question[key]) in (int, float) else question[key]
            for key in _NAMED if key in question]  # fmt: skip
    load = question.get("arrivals", {}).get("concurrent")
    return " ".join([*map(str, said), f"on {on}", *([f"users {load}"] if load else [])])


def document(catalogue: Catalogue) -> dict[str, Any]:
    """All rows by family, and a summary of each."""
    families = _grouped(rows(catalogue), lambda row: row.pop("family"))
    summary = {name: _summary(own) for name, own in families.items()}
    return {"schema": SCHEMA, **families, "summary": summary}


def _grouped(rows: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], Any]) -> _Groups:
    """Rows by a key, in the order in which they come."""
    found: _Groups = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    groups = _grouped(rows, itemgetter("group"))
    return {
        **_errors(rows), "rankings": rankings(rows),
        "groups": [{"group": name, **_errors(own)} for name, own in groups.items()],
    }  # fmt: skip


def _errors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The number of rows, their mean error and the largest."""
    errors = [abs(row["error"]) for row in rows]
    return {"rows": len(errors), "mean": mean(errors), "max": max(errors)}


def text(found: dict[str, Any]) -> str:
    """The document for people."""
    lines: list[str] = []
    for family in found["summary"]:
        lines += [
            f"{row['group']:<28} {row['name']:<80} {row['published']:>9,.4g} "
            f"{row['predicted']:>9,.4g} {row['quantity']:<20} {row['error']:+7.1%}"
            for row in found[family]
        ]
        lines.append("")
    for name, each in found["summary"].items():
        lines.append(f"{name}: {each['rows']} rows, {_within(each)}")
        for one in each["groups"]:
            lines.append(f"  {one['group']:<28} {one['rows']:>3} rows, {_within(one)}")
        orders = [f"{one['group']} {one['tau']:+.2f} ({one['rows']})" for one in each["rankings"]]
        lines.append(f"  rank correlation by group (rows): {', '.join(orders) or '-'}")
    return "\n".join(lines)


def _within(each: dict[str, Any]) -> str:
    return f"{each['mean']:.1%} in the mean, {each['max']:.1%} at most"


def kendall_tau(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Kendall's tau of two lists of the same things. None if one of them has equal values only."""
    firsts, seconds = ([(a > b) - (a < b) for a, b in combinations(v, 2)] for v in (one, other))
    agreed = sum(a * b for a, b in zip(firsts, seconds, strict=True))
    told = math.sqrt(sum(map(abs, firsts)) * sum(map(abs, seconds)))
    return agreed / told if told else None


def rankings(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rankings of all groups of comparable rows: those of one group in one quantity."""
    found = []
    for (group, quantity), own in _grouped(rows, itemgetter("group", "quantity")).items():
        tau = kendall_tau([row["published"] for row in own], [row["predicted"] for row in own])
        if tau is not None:
            found.append({"group": group, "quantity": quantity, "rows": len(own), "tau": tau})
    return found
