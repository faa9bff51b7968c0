"""`luwu plan`: the search is whole, what it shows is the best, and two searches are the same."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.commands.main import main
from luwu.predict.answer import memory_bytes
from luwu.predict.catalogue import Catalogue, load
from luwu.predict.planner import plan

PAGE = Path(__file__).resolve().parents[2] / "docs" / "predict.md"
TABLE: dict[str, Any] = {
    "model": "GPT-22B", "device": "A100-80", "network": "ib-hdr", "software": "megatron-2023",
    "devices": 64, "sequence": 2048, "batch": 256, "systems": ["3d", "zero3", "ddp"],
}  # fmt: skip


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load()


def test_predict_laws_plans(catalogue: Catalogue) -> None:
    """Goal: each of the set fits, none beats another in both, the first is the fastest; a whole
    model of 22 B fits no device; and two searches are the same."""
    found = plan(TABLE, catalogue)
    assert found.tried > 300
    assert 0 < found.too_large < found.tried
    rates = [each.tokens_per_s for each in found.best]
    left = [each.left_bytes for each in found.best]
    assert rates == sorted(rates, reverse=True)
    assert left == sorted(left)
    assert len(set(left)) == len(left)
    for each in found.best:
        needs = sum(memory_bytes(each.question).values())
        assert each.left_bytes == each.question.job.device.memory_bytes - needs >= 0
        assert each.step.seconds == each.question.answer().seconds
    assert "ddp" not in {each.question.system for each in found.best}
    assert plan(TABLE, catalogue) == found


def test_predict_laws_nothing_near_the_best_is_better(catalogue: Catalogue) -> None:
    """Goal: no change of one choice of the fastest is faster and fits."""
    best = plan(TABLE, catalogue).best[0]
    for name, values in (
        ("micro_batch", (1, 2, 4, 8)),
        ("recompute", ("none", "selective", "full")),
    ):
        for value in values:
            try:
                job = replace(best.question.job, **{name: value})
            except ConfigError:
                continue
            other = replace(best.question, job=job)
            fits = sum(memory_bytes(other).values()) <= job.device.memory_bytes
            assert not fits or other.answer().seconds >= best.step.seconds


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tensor": 8}, r"tensor: is what a plan searches; leave it out"),
        ({"systems": ["3dd"]}, r"systems: '3dd' is none of"),
        ({"systems": ["luwu"]}, r"\[node\] is missing: luwu"),
        ({"model": None}, r"model is missing"),
        ({"software": {"3d": "nemo-2024"}}, r"software.zero3 is missing"),
        (
            {"devices": 1, "batch": 1, "model": "GPT-1T"},
            r"none of \d+ configurations fits",
        ),
        ({"batch": 7}, r"batch: no degrees share it"),
    ],
)
def test_bad_prediction_plans(catalogue: Catalogue, change: dict[str, Any], said: str) -> None:
    """Goal: what cannot be searched is refused by name."""
    table = {key: value for key, value in {**TABLE, **change}.items() if value is not None}
    if change.get("batch") == 7:
        table["systems"] = ["zero3"]
    with pytest.raises(ConfigError, match=said):
        plan(table, catalogue)


def test_the_page_has_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the example of docs/predict.md runs, for people and as JSON."""
    blocks = PAGE.read_text().split("```toml\n")[1:]
    text = next(block.partition("```")[0] for block in blocks if block.startswith("systems"))
    tomllib.loads(text)
    file = tmp_path / "plan.toml"
    file.write_text(text)
    assert main(["plan", str(file)]) == 0
    assert "that no other beats" in capsys.readouterr().out
    assert main(["plan", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"][0]["system"] == "3d"
    assert main(["plan"]) == 2
    assert main(["plan", str(tmp_path / "none.toml")]) == 2
