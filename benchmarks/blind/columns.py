"""Columns beside the frozen values of `docs/predict/blind-2.json` and `blind-3.json`, which are
never edited.

A change of the model that is meant adds one: why, the digest of its parameters, and the values that
it changes.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, Final

from benchmarks.blind.predicted import predicted
from luwu.predict.hardware.catalogue import Catalogue, load

SCHEMA: Final = 2
_ROOT: Final = Path(__file__).parents[2]
TOLERANCE: Final = 1e-9
"""Relative; machines round their logarithms and roots differently, and documents to 12 digits."""


def parameters_sha256(found: dict[str, Any]) -> str:
    """The digest of the files of numbers that the document depends on, as they are now."""
    digest = hashlib.sha256()
    for path in found["parameters"]:
        digest.update((_ROOT / path).read_bytes())
    return digest.hexdigest()


def catalogue_of(found: dict[str, Any]) -> Catalogue:
    """The package's, with the document's own file of what that lacks."""
    return load(*(_ROOT / path for path in found.get("catalogue", ())))


def values_of(found: dict[str, Any]) -> dict[str, float]:
    """The value of each row, from the last column that has one."""
    values = {row["name"]: row["value"] for row in found["rows"]}
    for column in found["columns"]:
        values |= column["values"]
    return values


def with_column(found: dict[str, Any], date: str, why: str) -> dict[str, Any]:
    """The document with one more column: what the model of today predicts otherwise."""
    catalogue, last, values = catalogue_of(found), values_of(found), {}
    for row in found["rows"]:
        value = predicted(row["configuration"], catalogue)
        if not math.isclose(value, last[row["name"]], rel_tol=TOLERANCE):
            values[row["name"]] = float(f"{value:.12g}")
    column = {
        "date": date, "why": why, "parameters_sha256": parameters_sha256(found), "values": values,
    }  # fmt: skip
    return {**found, "columns": [*found["columns"], column]}
