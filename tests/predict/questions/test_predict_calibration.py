"""What was published, beside what is predicted: how far off the model may be."""

from __future__ import annotations

import re
import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from benchmarks.calibration import document, question_of
from luwu.predict.ask.question import Question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.model.collectives import eta
from tests import equations
from tests.predict.tables import LUWU, asked

PREDICT = Path(__file__).parents[3] / "luwu" / "predict"
BARS = {
    "training": (114, 0.05, 0.20), "memory": (12, 0.03, 0.03), "offload": (12, 0.08, 0.20),
    "inference": (71, 0.07, 0.25),
}  # fmt: skip
"""Rows, the mean of errors, and the largest."""


@pytest.fixture(name="found", scope="module")
def _found(catalogue: Catalogue) -> dict[str, Any]:
    return document(catalogue)


def test_the_goals_of_the_calibration(found: dict[str, Any]) -> None:
    """Goal: all rows are there, and within the bars. They calibrate the model: it says that the
    form is right, not how good it is."""
    for family, (rows, mean_max, error_max) in BARS.items():
        summary = found["summary"][family]
        assert summary["rows"] == len(found[family]) == rows
        assert summary["mean"] < mean_max, family
        assert summary["max"] < error_max, family


def test_no_winner_is_another_one(found: dict[str, Any]) -> None:
    """Goal: of two rows of one model, group and quantity, whose published numbers differ by 3 % or
    more, the larger one is predicted to be larger. Method: requests of equal lengths."""
    same = ("model", "input_tokens", "output_tokens")
    for one, other in combinations([row for family in BARS for row in found[family]], 2):
        keys = [(row["group"], row["quantity"], *map(row["question"].get, same))
                for row in (one, other)]  # fmt: skip
        ratio = one["published"] / other["published"]
        if keys[0] == keys[1] and abs(ratio - 1) > 0.03 and one["question"] != other["question"]:
            assert (one["predicted"] > other["predicted"]) == (ratio > 1), (one, other)


def test_every_published_run_fits(catalogue: Catalogue, found: dict[str, Any]) -> None:
    """Goal: one model of memory, that of questions, holds what was published; and the largest class
    of models of the paper fits its testbed, with what goes into a layer in the hosts."""
    for row in found["training"]:
        question = question_of(row["question"], catalogue)
        assert isinstance(question, Question)
        assert question.fits, row
    table = {**LUWU, "model": "GPT-1000B", "software": "deepspeed-2023", "devices": 8}
    table |= {"batch": 16, "micro_batch": 2}
    assert [asked(table, catalogue, layers_in_hosts=each).fits for each in (552, None)] == [
        True, False,
    ]  # fmt: skip


def test_collectives_lose_more_with_more_ranks() -> None:
    """Goal: the published points, and what lies between them."""
    assert [eta(ranks) for ranks in (1, 2, 4, 8, 64)] == [1.0, 0.98, 0.74, 0.69, 0.69]
    assert 0.74 < eta(3) < 0.98


def test_equations_are_on_their_page() -> None:
    """Goal: docs/predict/equations.md has what the modules say, and each number means one thing."""
    assert equations.main(["--check"]) == 0


def test_at_most_twenty_numbers_are_fitted(found: dict[str, Any]) -> None:
    """Goal: all that was fitted is in one file, each with its groups and meaning, twenty at most;
    and the model asks for no other."""
    numbers = tomllib.loads((PREDICT / "data" / "fitted.toml").read_text())
    assert 0 < len(numbers) <= 20
    groups = {row["group"] for family in BARS for row in found[family]}
    for each in numbers.values():
        assert each["value"] > 0
        assert each["meaning"]
        assert set(each["on"]) <= groups
    code = "".join(path.read_text() for path in sorted(PREDICT.rglob("*.py")))
    asked = set(re.findall(r'fitted\(\s*"(\w+)"', code))
    assert asked <= set(numbers)
    by_name = {name for name in numbers if name.startswith(("matmul_scale", "attention_"))}
    assert not set(numbers) - asked - by_name


def test_the_page_of_accuracy_has_the_numbers_of_today(found: dict[str, Any]) -> None:
    """Goal: docs/predict-accuracy.md says what `python -m benchmarks.calibration` says."""
    page = (PREDICT.parents[1] / "docs" / "predict-accuracy.md").read_text()
    for each in found["summary"].values():
        assert f"| {each['rows']} | {_percent(each['mean'])} | {_percent(each['max'])} |" in page


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
