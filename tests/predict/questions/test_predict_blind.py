"""The first set of blind rows: what was frozen, beside what was published since."""

from __future__ import annotations

import json
from statistics import mean
from typing import Any

import pytest

from benchmarks.blind import __main__ as program
from benchmarks.blind.score import FROZEN, counting, holds, scored, text, wrong_winners
from benchmarks.blind.unseen import coverage, unseen

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
