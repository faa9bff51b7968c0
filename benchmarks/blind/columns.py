"""Columns beside the frozen values of `docs/predict/blind-2.json` and `blind-3.json`, which are
never edited.

A change of the model that is meant adds one: why, the digest of its parameters, and the values that
it changes; where rows have intervals, each of these with its own, by the rule of answers
(`luwu/predict/ask/interval.py`). The value of a question that the model refuses since is null.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, Final

from benchmarks.calibration import NETWORK, predicted, question_of
from luwu.base.errors import ConfigError
from luwu.predict.ask.interval import error_bar
from luwu.predict.hardware.catalogue import Catalogue, load

SCHEMA: Final = 2
_ROOT: Final = Path(__file__).parents[2]
NETWORK_FACTOR: Final = 1.07
"""The factor for switches, links and their prices: the largest error of networks in blind.json."""
TOLERANCE: Final = 1e-9
"""Relative; machines round their logarithms and roots differently, and documents to 12 digits."""


def parameters_sha256(found: dict[str, Any]) -> str:
    """The digest of the files of numbers that the document depends on, as they are now, without
    those that are gone."""
    digest = hashlib.sha256()
    for path in found["parameters"]:
        if (_ROOT / path).exists():
            digest.update((_ROOT / path).read_bytes())
    return digest.hexdigest()


def catalogue_of(found: dict[str, Any]) -> Catalogue:
    """The package's, with the document's own file of what that lacks."""
    return load(*(_ROOT / path for path in found.get("catalogue", ())))


def today(configuration: dict[str, Any], catalogue: Catalogue) -> float | None:
    """The value that the model predicts today, with 12 digits; None if it refuses the question."""
    try:
        return float(f"{predicted(configuration, catalogue):.12g}")
    except ConfigError:
        return None


def values_of(found: dict[str, Any]) -> dict[str, float | None]:
    """The value of each row, from the last column that has one."""
    values = {row["name"]: row["value"] for row in found["rows"]}
    for column in found["columns"]:
        values |= column["values"]
    return values


def _factors(configuration: dict[str, Any], catalogue: Catalogue) -> tuple[float, float]:
    """By which the interval of a value goes below and above it."""
    if configuration["quantity"] in NETWORK:
        return NETWORK_FACTOR, NETWORK_FACTOR
    bar = error_bar(question_of(configuration["question"], catalogue))
    factor = bar["factor"]
    if configuration["quantity"].startswith("first token"):
        return factor, bar.get("first_token_factor", factor)
    return factor, factor


def with_column(found: dict[str, Any], date: str, why: str) -> dict[str, Any]:
    """The document with one more column: what the model of today predicts otherwise."""
    catalogue, last = catalogue_of(found), values_of(found)
    values: dict[str, float | None] = {}
    intervals: dict[str, list[float]] = {}
    for row in found["rows"]:
        name, configuration = row["name"], row["configuration"]
        value, before = today(configuration, catalogue), last[name]
        if value is None or before is None:
            if value != before:
                values[name] = value
        elif not math.isclose(value, before, rel_tol=TOLERANCE):
            values[name] = value
            if "low" in row:
                below, above = _factors(configuration, catalogue)
                intervals[name] = [float(f"{each:.12g}") for each in (value / below, value * above)]
    column: dict[str, Any] = {
        "date": date, "why": why, "parameters_sha256": parameters_sha256(found), "values": values,
    }  # fmt: skip
    if intervals:
        column["intervals"] = intervals
    return {**found, "columns": [*found["columns"], column]}
