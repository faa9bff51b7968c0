"""The benchmark of the performance model runs and checks its answers; its times are not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.test_benchmarks import run_smoke


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    """Goal: `benchmarks/predict.py` does not rot. Method: smoke sizes; every repeat of every arm
    must give the same document, and the cores the closed form's step."""
    document = run_smoke(tmp_path, "predict")
    rows = {(row["case"], row["arm"]): row for row in document["rows"]}
    arms = ("process", "call", "floor of a process", "floor of a call")
    assert set(rows) == {(case, arm) for case in ("closed form", "cores", "plan") for arm in arms}
    assert document["claims"]["configurations"] > 100
    assert rows["plan", "process"]["goal_seconds"] == 30
    assert rows["plan", "call"]["configurations_per_s"] > 0
