"""What is asked first: does it fit, how long is a whole training, how far off may the answer be?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luwu.commands.main import main
from luwu.predict.ask.answer import answer, text
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.software import data
from tests import error_bars
from tests.helpers.schemas import check
from tests.predict.tables import RENTED, asked

LARGE: dict[str, Any] = {
    "system": "3d", "model": "Llama3-70B", "device": "H100-80", "network": "ib-ndr",
    "software": "nemo-2024", "devices": 64, "sequence": 8192, "batch": 128, "micro_batch": 2,
    "tensor": 4, "pipeline": 4, "sequence_parallel": True,
}  # fmt: skip


# ---------------------------------------------------------------------- does it fit


def test_what_does_not_fit_is_said_first(catalogue: Catalogue) -> None:
    """Goal: the first line has what is needed and what there is; nothing of it where a job fits."""
    document = answer(asked(LARGE, catalogue))
    assert document["fits"] is False
    first, *_ = text(document).splitlines()
    assert first.startswith("DOES NOT FIT: 111.64 GiB of 80.00 GiB (states 27.89 GiB, activations ")
    good = answer(asked(LARGE, catalogue, micro_batch=1))
    assert good["fits"] is True
    assert not text(good).startswith("DOES NOT FIT")


def test_bad_prediction_of_what_does_not_fit_ends_with_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: programs see it too."""
    lines = [
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {json.dumps(value)}"
        for key, value in LARGE.items()
    ]
    large, small = tmp_path / "large.toml", tmp_path / "small.toml"
    large.write_text("\n".join(lines))
    small.write_text("\n".join(lines).replace("micro_batch = 2", "micro_batch = 1"))
    for command, code in (
        (["step", large], 1), (["step", small], 0), (["step", large, "--json"], 1),
    ):  # fmt: skip
        assert main(["predict", *map(str, command)]) == code
        said = capsys.readouterr().out
    check("predict-step", json.loads(said))


# ---------------------------------------------------------------------- a whole training


def test_predict_laws_a_whole_training(catalogue: Catalogue) -> None:
    """Goal: steps are rounded up; hours are those of all devices; dollars are those of the
    rental by the hour; without [cost] dollars are not known."""
    question = asked(LARGE, catalogue, micro_batch=1, tokens="1T", cost=RENTED)
    document = answer(question)
    found = document["whole_training"]
    assert found["steps"] == -(-(10**12) // (128 * 8192))
    seconds = found["steps"] * document["step_s"]
    assert found["days"] == pytest.approx(seconds / 86400)
    assert found["device_hours"] == pytest.approx(64 * seconds / 3600)
    assert found["dollars"] == pytest.approx(document["cost"]["dollars_per_h"] * seconds / 3600)
    assert "1,000 billion tokens: 953,675 steps, " in text(document)
    assert "GPU-hours" in text(document)
    check("predict-step-training", document)
    bare = answer(asked(LARGE, catalogue, micro_batch=1, tokens=2e12))
    assert bare["whole_training"]["dollars"] is None
    assert "dollars are not known without [cost]" in text(bare)
    assert bare["whole_training"]["days"] == pytest.approx(2 * found["days"], rel=1e-5)
    assert "whole_training" not in answer(asked(LARGE, catalogue, micro_batch=1))


# ---------------------------------------------------------------------- how far off


def test_factors_are_those_of_the_blind_sets() -> None:
    """Goal: luwu/predict/data/errors.toml is what the blind sets and the rows say."""
    assert error_bars.main(["--check"]) == 0


def test_an_answer_has_its_interval(catalogue: Catalogue) -> None:
    """Goal: the factor of its kind, wider for each thing that no row has, which is named; and an
    answer that is outside of everything says so first."""
    factors = data("errors.toml")["factor"]
    document = answer(asked(LARGE, catalogue, micro_batch=1))
    assert document["error"]["factor"] == factors["training"] > 1
    assert document["error"]["outside"] == []
    low, high = document["step_s"] / factors["training"], document["step_s"] * factors["training"]
    assert f"80% interval      {low:.4g} to {high:.4g} s a step" in text(document)
    other = {"network": "roce-100g", "micro_batch": 1, "recompute": "full"}
    for change, wider in (
        ({"device": "B200-180"}, ["device"]),
        ({"device": "B200-180", "software": "deepspeed-2023"}, ["device", "framework"]),
        ({"model": "Mixtral-8x7B"}, ["experts"]),
    ):
        question = asked(LARGE, catalogue, **other, **change)
        found = answer(question)
        assert found["error"]["wider"] == wider
        assert found["error"]["factor"] == max(factors[name] for name in wider)
        says_first = text(found).startswith("NOTHING LIKE THIS WAS COMPARED: by device, framework")
        assert says_first == (len(wider) > 1)
