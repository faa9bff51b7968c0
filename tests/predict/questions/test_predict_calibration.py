"""What was published, beside what is predicted: how far off the model may be."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from luwu.predict.check.calibration import compare_memory, compare_offload, training_rows
from luwu.predict.check.validate import document, kendall_tau
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.model.collectives import eta, exposed_s
from luwu.predict.model.memory import sharded_state_bytes
from luwu.predict.systems.data_parallel import predict_sharded_step
from tests import equations

PREDICT = Path(__file__).parents[3] / "luwu" / "predict"


def test_calibration_of_memory(catalogue: Catalogue) -> None:
    """Goal: memory within 3 %; nothing of it is fitted."""
    rows = compare_memory(catalogue)
    assert len(rows) == 6
    assert all(abs(row.error) < 0.03 for row in rows), rows


def test_calibration_of_offload(catalogue: Catalogue) -> None:
    """Goal: rows of offloading within 20 %, and LuWu first wherever it was."""
    rows = compare_offload(catalogue)
    assert len(rows) == 10
    assert all(abs(row.error) < 0.20 for row in rows), rows
    assert all(row.predicted > 1 for row in rows if " over LuWu" in row.name)


@pytest.mark.parametrize(
    ("published", "predicted", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3], [1, 3, 2], 1 / 3),
        ([1, 1, 2], [5, 6, 7], 2 / 6**0.5),
        ([1, 1], [5, 6], None),
        ([1], [5], None),
    ],
)
def test_predict_laws_rank_correlation(
    published: list[float], predicted: list[float], tau: float | None
) -> None:
    """Goal: equal orders are 1, opposite ones -1, a pair of three exchanged a third; equal values
    tell nothing."""
    found = kendall_tau(published, predicted)
    assert found == (None if tau is None else pytest.approx(tau))
    assert kendall_tau(predicted, published) == found


def test_calibration_keeps_the_order_of_groups(catalogue: Catalogue) -> None:
    """Goal: rows of one source in one unit come in their order: 0.8 or more of 1 in each group."""
    summary = document(catalogue)["summary"]
    taus = {(name, one["group"], one["unit"]): one["tau"] for name in summary
            for one in summary[name]["rankings"]}  # fmt: skip
    assert len(taus) >= 10
    assert min(taus.values()) > 0.8, taus
    assert taus["training", "C3", "TFLOP/s"] == 1


@pytest.mark.parametrize("kappa", [0.0, 0.15])
@pytest.mark.parametrize("left", [1.0, 0.7])
def test_predict_laws_overlap(kappa: float, left: float) -> None:
    """Goal: never shorter than the longer one, never longer than both after each other by more than
    they disturb one another; at no disturbance exactly the longer one; and no jump between the
    forms."""
    for exchange in (0.0, 0.5, 1.0, 2.0, 10.0):
        both = 1.0 + exposed_s(1.0, exchange, kappa=kappa, eta=left)
        assert both >= max(1.0, exchange) - 1e-12
        if kappa == 0 and left == 1:
            assert both == max(1.0, exchange)
    border = left / (1 - kappa)
    below = 1.0 + exposed_s(1.0, border * (1 - 1e-9), kappa=kappa, eta=left)
    above = 1.0 + exposed_s(1.0, border * (1 + 1e-9), kappa=kappa, eta=left)
    assert below == pytest.approx(above, rel=1e-6)


def test_collectives_lose_more_with_more_ranks() -> None:
    """Goal: the published points, and what lies between them."""
    assert [eta(ranks) for ranks in (1, 2, 4, 8, 64)] == [1.0, 0.98, 0.74, 0.69, 0.69]
    assert 0.74 < eta(3) < 0.98


def test_predict_laws_sharded_steps(catalogue: Catalogue) -> None:
    """Goal: one device exchanges nothing; more devices hold less each; a faster network is never
    slower; every part counts."""
    row = next(row for row in training_rows(catalogue) if row.system == "zero3")
    alone = predict_sharded_step(replace(row.job, devices=1, batch=row.job.micro_batch))
    assert alone.parts["exchange"] == 0
    faster = replace(row.job, network=replace(row.job.network, rate=2 * row.job.network.rate))
    assert predict_sharded_step(faster).seconds < predict_sharded_step(row.job).seconds
    twice = replace(row.job, devices=2 * row.job.devices, batch=2 * row.job.batch)
    assert sharded_state_bytes(twice) < sharded_state_bytes(row.job)
    step = predict_sharded_step(row.job)
    assert step.seconds == sum(step.parts.values())


def test_equations_are_on_their_page() -> None:
    """Goal: docs/predict/equations.md has what the modules say, and each number means one thing."""
    assert equations.main(["--check"]) == 0


def test_at_most_twenty_numbers_are_fitted() -> None:
    """Goal: all that was fitted is in one file, each with its rows and meaning, twenty at most; and
    the model asks for no other."""
    numbers = tomllib.loads((PREDICT / "data" / "fitted.toml").read_text())
    assert 0 < len(numbers) <= 20
    assert all(each["value"] > 0 and each["on"] and each["meaning"] for each in numbers.values())
    code = "".join(path.read_text() for path in sorted(PREDICT.rglob("*.py")))
    asked = set(re.findall(r'fitted\(\s*"(\w+)"', code))
    assert asked <= set(numbers)
    scales = {name for name in numbers if name.startswith("matmul_scale")}
    assert not set(numbers) - asked - scales


def test_the_goals_of_the_calibration(catalogue: Catalogue) -> None:
    """Goal: training within 5 % in the mean and 15 % at most, inference 6 % and 15 %, offload and
    LuWu's testbed 12 % and 25 %. They calibrate the model: it says that the form is right, not how
    good it is."""
    found = document(catalogue)
    for family, mean_max, error_max in (
        ("training", 0.05, 0.15), ("inference", 0.06, 0.15), ("offload", 0.12, 0.25),
    ):  # fmt: skip
        assert found["summary"][family]["mean"] < mean_max, family
        assert found["summary"][family]["max"] < error_max, family


def test_the_page_of_accuracy_has_the_numbers_of_today(catalogue: Catalogue) -> None:
    """Goal: docs/predict-accuracy.md says what `luwu predict validate` says."""
    page = (PREDICT.parents[1] / "docs" / "predict-accuracy.md").read_text()
    found = document(catalogue)
    for each in found["summary"].values():
        assert f"| {each['rows']} | {_percent(each['mean'])} | {_percent(each['max'])} |" in page


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
