"""All rows, as `docs/predict/blind.json`, as `blind-2.json`, and for people.

The frozen rows of the second document are never edited. A change of the model that is meant adds a
column beside them: why, the digest of its parameters, and the values that it changes.
"""

from __future__ import annotations

import hashlib
import math
from importlib import resources
from typing import Any

from luwu.predict.check.blind import questions
from luwu.predict.check.blind.seen import blind_rows
from luwu.predict.hardware.catalogue import Catalogue

SCHEMA = 1
SCHEMA_2 = 2
PARAMETERS = "luwu/predict/data/fitted.toml"
PARAMETERS_2 = (
    PARAMETERS, "luwu/predict/data/software.toml", "luwu/predict/data/catalogue/devices.toml",
    "luwu/predict/data/catalogue/models.toml", "luwu/predict/data/catalogue/networks.toml",
)  # fmt: skip
"""All files of numbers that the second set of rows depends on."""
TOLERANCE = 1e-9
"""Relative; machines round their logarithms and roots differently, and documents to 12 digits."""


def parameters_sha256(*paths: str) -> str:
    """The digest of these files, one after the other; that of fitted numbers if none is given."""
    digest = hashlib.sha256()
    for path in paths or (PARAMETERS,):
        inside = path.removeprefix("luwu/predict/").split("/")
        digest.update(resources.files("luwu.predict").joinpath(*inside).read_bytes())
    return digest.hexdigest()


def document(catalogue: Catalogue, commit: str) -> dict[str, Any]:
    """The document that `python -m benchmarks.blind` writes; `commit` is that of the model."""
    return {
        "schema": SCHEMA, "commit": commit,
        "parameters": PARAMETERS, "parameters_sha256": parameters_sha256(),
        "rows": [row.to_json() for row in blind_rows(catalogue)],
    }  # fmt: skip


def document_2(catalogue: Catalogue, commit: str, date: str) -> dict[str, Any]:
    """That of the second set of rows, without a column beside the frozen values."""
    return {
        "schema": SCHEMA_2, "date": date, "commit": commit,
        "parameters": list(PARAMETERS_2), "parameters_sha256": parameters_sha256(*PARAMETERS_2),
        "rows": [row.to_json() for row in questions.rows(catalogue, questions.SETS[1])],
        "not_predicted": questions.not_predicted(), "columns": [],
    }  # fmt: skip


def values_of(found: dict[str, Any]) -> dict[str, float]:
    """The value of each row of the second set, from the last column that has one."""
    values = {row["name"]: row["value"] for row in found["rows"]}
    for column in found["columns"]:
        values |= column["values"]
    return values


def with_column(
    found: dict[str, Any], catalogue: Catalogue, date: str, why: str
) -> dict[str, Any]:  # fmt: skip
    """The document with one more column: what the model of today predicts otherwise."""
    last, values = values_of(found), {}
    for row in found["rows"]:
        value = questions.predicted(row["configuration"], catalogue)
        if not math.isclose(value, last[row["name"]], rel_tol=TOLERANCE):
            values[row["name"]] = float(f"{value:.12g}")
    column = {
        "date": date, "why": why, "parameters_sha256": parameters_sha256(*PARAMETERS_2),
        "values": values,
    }  # fmt: skip
    return {**found, "columns": [*found["columns"], column]}


def text(found: dict[str, Any]) -> str:
    """The document for people."""
    lines = [f"model {found['commit']}, parameters {found['parameters_sha256'][:12]}"]
    group = ""
    for row in found["rows"]:
        if row["group"] != group:
            group = row["group"]
            lines += ["", group]
        lines.append(f"  {row['name']:<74} {row['value']:>10.4g} {row['unit']}")
    return "\n".join(lines)
