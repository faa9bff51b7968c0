"""Blind rows: what was frozen of the first set, beside what was published since; of the later sets,
whose frozen values are those of the model, or have a column beside."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks.blind import __main__ as program
from benchmarks.blind.columns import TOLERANCE, catalogue_of, parameters_sha256, today, values_of
from benchmarks.blind.score import FROZEN, counting, holds, scored, text, wrong_winners
from benchmarks.blind.unseen import coverage, unseen
from luwu.base.errors import ConfigError
from luwu.predict.hardware.catalogue import Catalogue

PAGE = FROZEN.parents[1] / "predict-accuracy.md"


@pytest.fixture(name="rows", scope="module")
def _rows() -> list[dict[str, Any]]:
    return scored()


def test_published_rows_stand_beside_the_frozen_ones(rows: list[dict[str, Any]]) -> None:
    """Goal: what was published is there for every row that has it, its frozen prediction is that of
    docs/predict/blind.json, which says what made it; a row that is in no mean says why."""
    document = json.loads(FROZEN.read_text(encoding="utf-8"))
    assert len(document["commit"]) == 40
    frozen = {row["name"]: row["value"] for row in document["rows"]}
    assert len(rows) == len({row["name"] for row in rows}) == 108
    assert all(row["frozen"] == frozen[row["name"]] for row in rows)
    assert sum(bool(row["left_out"]) for row in rows) == 14 + 1 + 2 + 2
    assert sum(row["holds"] is not None for row in rows) == 8 + 2 + 2
    assert wrong_winners(rows) == [
        "256 data parallel x TP8 x PP16: exchange, ring over LuWu is more than 256 data parallel x "
        "TP8 x PP16: exchange, PAT over LuWu"
    ]


def test_intervals_hold_what_other_families_had_not_seen() -> None:
    """Goal: over both sets, with the factors of all families but its own, 75 to 90 % of the rows
    are inside; and the page has how many of each."""
    found = coverage(unseen())
    inside, rows = (sum(each[index] for each in found.values()) for index in (0, 1))
    assert rows == 119
    assert 0.75 <= inside / rows <= 0.90, found
    page = PAGE.read_text(encoding="utf-8")
    for family, (own, count) in found.items():
        name = family.partition(".json")[2]
        assert f"| {name} | {own} of {count} |" in page, family


def test_the_page_of_accuracy_has_the_frozen_errors(rows: list[dict[str, Any]]) -> None:
    """Goal: docs/predict-accuracy.md says what `python -m benchmarks.blind` says."""
    page = PAGE.read_text(encoding="utf-8")
    for of in (
        ("Megatron, A100-80", "Megatron, A100, large"), ("Ampere cluster",), ("DGX H100",),
        ("GB200",), ("H100 RoCE 400G",), ("FSDP",), ("Inference",), ("LuWu testbed",),
        ("Networks",),
    ):  # fmt: skip
        errors = [
            abs(row["frozen_error"])
            for row in counting(rows)
            if row["group"] in of and row["family"] != "memory"
        ]
        said = f"{100 * mean(errors):.1f} %, {100 * max(errors):.1f} %"
        assert f"| {len(errors)} | {said} |" in page, of


def test_the_program_prints_every_row(
    rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main([]) == 0
    assert capsys.readouterr().out == text(rows) + "\n"
    assert all(row["name"] in text(rows) for row in rows)
    assert program.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == rows


def test_bounds_ranges_and_classes() -> None:
    """Goal: a bound holds from its value on, a range in itself, a class up to the next."""
    classes = [13.0, 175.0, 276.0]
    found = [
        holds(bound, 175, value, classes)
        for bound, value in (
            ("at least", 175), ("at least", 174), ([1.1, 1.2], 1.1), ([1.1, 1.2], 1.21),
            ("class", 275), ("class", 276), (None, 1),
        )
    ]  # fmt: skip
    assert found == [True, False, True, False, True, False, None]


# ---------------------------------------------------------------------- the later sets


LATER = {
    "blind-2.json": (48, 2, "7239342ed3e0871f2189220e6e719d3ffe74b83059a1db6d11c12335d084df7e"),
    "blind-3.json": (81, 24, "6517be1a91744f4a6e5947ebaefe17577080c98fceac1daa82ac0a99ae774677"),
}
"""Rows that count, what cannot be asked, and the digest of all but the columns; a change of it is a
change of what was frozen."""
BESIDE = (
    "the model or its parameters changed; if that is meant, run python -m benchmarks.blind "
    "--beside docs/predict/{} --why TEXT"
)


@pytest.fixture(name="path", params=LATER, scope="module")
def _path(request: pytest.FixtureRequest) -> Path:
    return FROZEN.parent / str(request.param)


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
    assert hashlib.sha256(text.encode()).hexdigest() == LATER[path.name][2]


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
    assert (len(counted), len(found["not_predicted"])) == LATER[path.name][:2]
    assert others == counted


def test_each_of_the_82_questions_has_a_row_or_a_reason() -> None:
    found = json.loads((FROZEN.parent / "blind-3.json").read_text(encoding="utf-8"))
    names = [each["name"] for each in (*found["rows"], *found["not_predicted"])]
    assert {int(name[3:5]) for name in names} == set(range(1, 83))


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
        program.add_column(FROZEN.parent / "blind.json", "a test")
    with pytest.raises(SystemExit):
        program.main(["--beside", str(FROZEN.parent / "blind-2.json")])
