"""The second set of blind rows: frozen values are those of the model, or have a column beside."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.blind import __main__ as program
from benchmarks.blind.columns import TOLERANCE, parameters_sha256, values_of
from benchmarks.blind.predicted import predicted
from luwu.base.errors import ConfigError
from luwu.predict.hardware.catalogue import Catalogue

PATH = Path(__file__).parents[2] / "docs" / "predict" / "blind-2.json"
FROZEN_SHA256 = "7239342ed3e0871f2189220e6e719d3ffe74b83059a1db6d11c12335d084df7e"
"""Of all but the columns; a change of it is a change of what was frozen."""
BESIDE = (
    "the model or its parameters changed; if that is meant, run python -m benchmarks.blind "
    "--beside docs/predict/blind-2.json --why TEXT"
)


@pytest.fixture(name="found", scope="module")
def _found() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return document


def test_what_was_frozen_is_not_edited(found: dict[str, Any]) -> None:
    """Goal: rows, date, commit and digest are those of the day of the freeze."""
    frozen = {key: value for key, value in found.items() if key != "columns"}
    text = json.dumps(frozen, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == FROZEN_SHA256


def test_the_model_gives_each_frozen_value(found: dict[str, Any], catalogue: Catalogue) -> None:
    """Goal: each number follows from the document's own question, or a column has the new one.
    Method: all questions are asked again, to the last digits of the document."""
    values = values_of(found)
    today = {row["name"]: predicted(row["configuration"], catalogue) for row in found["rows"]}
    assert today == pytest.approx(values, rel=TOLERANCE), BESIDE


def test_the_parameters_are_those_of_the_document(found: dict[str, Any]) -> None:
    """Goal: the digest names the files that the model reads now, or a column does."""
    digests = [each["parameters_sha256"] for each in (found, *found["columns"])]
    assert digests[-1] == parameters_sha256(found), BESIDE


def test_every_alternative_names_a_row_that_counts(found: dict[str, Any]) -> None:
    counted = {row["name"] for row in found["rows"] if "alternative_to" not in row}
    others = {row.get("alternative_to", row["name"]) for row in found["rows"]}
    assert len(counted) == 48
    assert others == counted


def test_a_column_has_what_changed(
    found: dict[str, Any], catalogue: Catalogue, tmp_path: Path
) -> None:
    """Goal: a value that the model does not give gets a column beside it, and stays."""
    path = tmp_path / "blind-2.json"
    rows = [{**row, "value": predicted(row["configuration"], catalogue)} for row in found["rows"]]
    rows[3]["value"] *= 2
    path.write_text(json.dumps({**found, "rows": rows, "columns": []}), encoding="utf-8")
    assert program.main(["--beside", str(path), "--why", "a test"]) == 0
    written = json.loads(path.read_text(encoding="utf-8"))
    name = rows[3]["name"]
    assert written["rows"] == rows
    assert list(written["columns"][-1]["values"]) == [name]
    assert values_of(written)[name] == pytest.approx(rows[3]["value"] / 2, rel=TOLERANCE)


def test_bad_column(tmp_path: Path, catalogue: Catalogue) -> None:
    """Goal: only a document of the second set gets one, and it says why."""
    with pytest.raises(ConfigError, match="no document"):
        program.add_column(catalogue, tmp_path / "none.json", "a test")
    with pytest.raises(ConfigError, match="has no columns"):
        program.add_column(catalogue, PATH.with_name("blind.json"), "a test")
    with pytest.raises(SystemExit):
        program.main(["--beside", str(PATH)])
