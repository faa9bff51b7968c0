"""Blind rows: what they cover, and that what is committed says who made it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.blind import __main__ as program
from benchmarks.blind.document import document, parameters_sha256, text
from luwu.base.errors import ConfigError
from luwu.predict.check.blind.seen import blind_rows, holds, seen_rows
from luwu.predict.hardware.catalogue import Catalogue, load

FROZEN = Path(__file__).parents[2] / "docs" / "predict" / "blind.json"


def test_blind_rows_are_numbers_with_units_and_names_of_their_own() -> None:
    """Goal: every configuration is predicted, twice alike."""
    rows = blind_rows(load())
    assert len({row.name for row in rows}) == len(rows) > 90
    assert all(math.isfinite(row.value) and row.value > 0 and row.unit for row in rows)
    assert [row.to_json() for row in rows] == [row.to_json() for row in blind_rows(load())]
    found = document(load(), "a commit")
    assert found["commit"] == "a commit"
    assert found["parameters_sha256"] == parameters_sha256()
    assert all(row.name in text(found) for row in rows)


def test_the_frozen_rows_say_what_made_them() -> None:
    """Goal: docs/predict/blind.json has every configuration, with the commit of the model."""
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    assert {row["name"] for row in frozen["rows"]} == {row.name for row in blind_rows(load())}
    assert len(frozen["commit"]) == 40
    assert len(frozen["parameters_sha256"]) == 64


def test_bad_prediction_of_a_model_that_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no commit is named that did not make the numbers."""
    monkeypatch.setattr(program, "_git", lambda *words: " M luwu/predict/systems/zero.py")
    with pytest.raises(ConfigError, match="not committed"):
        program.model_commit()


def test_bad_prediction_outside_of_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: an installed package says that it knows no commit."""
    monkeypatch.setattr(program, "_FOLDERS", (tmp_path,))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(ConfigError, match="not in a git checkout"):
        program.model_commit()


def test_published_rows_stand_beside_the_frozen_ones(catalogue: Catalogue) -> None:
    """Goal: what was published is there for every row that has it, its frozen prediction is that of
    docs/predict/blind.json, and a row that is in no mean says why."""
    frozen = {row["name"]: row["value"] for row in json.loads(FROZEN.read_text())["rows"]}
    rows = seen_rows(catalogue)
    assert len(rows) == len({row["name"] for row in rows}) == 108
    assert all(row["frozen"] == frozen[row["name"]] for row in rows)
    assert sum(bool(row["left_out"]) for row in rows) == 14 + 1 + 2 + 2
    assert sum(row["holds"] is not None for row in rows) == 8 + 2 + 2


def test_bounds_ranges_and_classes() -> None:
    """Goal: a bound holds from its value on, a range in itself, a class up to the next."""
    bounds = {
        "at_least": ["bound"], "ranges": [["range", 1.1, 1.2]], "largest": ["size"],
        "classes": [13, 175, 276],
    }  # fmt: skip
    found = [
        holds(bounds, name, 175, value)
        for name, value in (
            ("bound", 175), ("bound", 174), ("range", 1.1), ("range", 1.21), ("size", 275),
            ("size", 276), ("other", 1),
        )
    ]  # fmt: skip
    assert found == [True, False, True, False, True, False, None]
