"""The later sets of blind rows: frozen values are those of the model, or have a column beside."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.blind import __main__ as program
from benchmarks.blind.columns import TOLERANCE, catalogue_of, parameters_sha256, today, values_of
from benchmarks.blind.interval import SHARE, interval
from luwu.base.errors import ConfigError
from luwu.predict.hardware.catalogue import Catalogue

FOLDER = Path(__file__).parents[3] / "docs" / "predict"
FROZEN: Final = {
    "blind-2.json": (48, 2, "7239342ed3e0871f2189220e6e719d3ffe74b83059a1db6d11c12335d084df7e"),
    "blind-3.json": (81, 24, "6517be1a91744f4a6e5947ebaefe17577080c98fceac1daa82ac0a99ae774677"),
}
"""Rows that count, what cannot be asked, and the digest of all but the columns; a change of it is a
change of what was frozen."""
BESIDE = (
    "the model or its parameters changed; if that is meant, run python -m benchmarks.blind "
    "--beside docs/predict/{} --why TEXT"
)


@pytest.fixture(name="path", params=FROZEN, scope="module")
def _path(request: pytest.FixtureRequest) -> Path:
    return FOLDER / str(request.param)


@pytest.fixture(name="found", scope="module")
def _found(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


@pytest.fixture(name="known", scope="module")
def _known(found: dict[str, Any]) -> Catalogue:
    return catalogue_of(found)


def test_what_was_frozen_is_not_edited(path: Path, found: dict[str, Any]) -> None:
    """Goal: rows, date, commit and digest are those of the day of the freeze."""
    frozen = {key: value for key, value in found.items() if key != "columns"}
    text = json.dumps(frozen, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == FROZEN[path.name][2]


def test_the_model_gives_each_frozen_value(
    path: Path, found: dict[str, Any], known: Catalogue
) -> None:
    """Goal: each number follows from the document's own question, or a column has the new one.
    Method: all questions are asked again, to the last digits of the document."""
    values = values_of(found)
    for row in found["rows"]:
        now, name = today(row["configuration"], known), row["name"]
        expected = values[name] if values[name] is None else pytest.approx(values[name], TOLERANCE)
        assert now == expected, (name, BESIDE.format(path.name))


def test_the_parameters_are_those_of_the_document(path: Path, found: dict[str, Any]) -> None:
    """Goal: the digest names the files that the model reads now, or a column does."""
    digests = [each["parameters_sha256"] for each in (found, *found["columns"])]
    assert digests[-1] == parameters_sha256(found), BESIDE.format(path.name)


def test_every_alternative_names_a_row_that_counts(path: Path, found: dict[str, Any]) -> None:
    counted = {row["name"] for row in found["rows"] if "alternative_to" not in row}
    others = {row.get("alternative_to", row["name"]) for row in found["rows"]}
    assert (len(counted), len(found["not_predicted"])) == FROZEN[path.name][:2]
    assert others == counted


def test_each_of_the_82_questions_has_a_row_or_a_reason() -> None:
    found = json.loads((FOLDER / "blind-3.json").read_text(encoding="utf-8"))
    names = [each["name"] for each in (*found["rows"], *found["not_predicted"])]
    assert {int(name[3:5]) for name in names} == set(range(1, 83))


def test_intervals_are_those_of_their_rule() -> None:
    """Goal: low and high of each frozen row are what the second set makes of its value, and 80 % of
    that set's published results or a few more are in the intervals of its own values."""
    second, published, third = (
        json.loads((FOLDER / path).read_text(encoding="utf-8"))
        for path in ("blind-2.json", "../../benchmarks/blind/published-2.json", "blind-3.json")
    )
    for row in third["rows"]:
        made = interval(row["configuration"], row["value"])
        assert (row["low"], row["high"]) == pytest.approx(made, rel=TOLERANCE)
    rows = {row["name"]: row for row in second["rows"]}
    inside = 0
    for name, value in published.items():
        low, high = interval(rows[name]["configuration"], rows[name]["value"])
        inside += low * (1 - TOLERANCE) <= value <= high * (1 + TOLERANCE)
    assert SHARE <= inside / len(published) < SHARE + 0.1


def test_a_column_has_what_changed(found: dict[str, Any], known: Catalogue, tmp_path: Path) -> None:
    """Goal: a value that the model does not give gets a column beside it, and stays."""
    path = tmp_path / "blind.json"
    rows = [{**row, "value": today(row["configuration"], known)} for row in found["rows"]]
    rows[3]["value"] *= 2
    path.write_text(json.dumps({**found, "rows": rows, "columns": []}), encoding="utf-8")
    assert program.main(["--beside", str(path), "--why", "a test"]) == 0
    written = json.loads(path.read_text(encoding="utf-8"))
    name = rows[3]["name"]
    assert written["rows"] == rows
    assert list(written["columns"][-1]["values"]) == [name]
    for low, high in written["columns"][-1].get("intervals", {}).values():
        assert low * high == pytest.approx(values_of(written)[name] ** 2)
        assert high > low
    assert ("intervals" in written["columns"][-1]) == ("low" in rows[3])
    assert values_of(written)[name] == pytest.approx(rows[3]["value"] / 2, rel=TOLERANCE)


def test_bad_column(tmp_path: Path) -> None:
    """Goal: only a document of questions gets one, and it says why."""
    with pytest.raises(ConfigError, match="no document"):
        program.add_column(tmp_path / "none.json", "a test")
    with pytest.raises(ConfigError, match="has no columns"):
        program.add_column(FOLDER / "blind.json", "a test")
    with pytest.raises(SystemExit):
        program.main(["--beside", str(FOLDER / "blind-2.json")])
