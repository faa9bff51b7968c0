"""The disk benchmark runs, its pipeline has the kernel's weights, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.test_benchmarks import run_smoke


def test_disk_runs(tmp_path: Path) -> None:
    """Goal: both arms run at both levels; the program checks the weights."""
    document = run_smoke(tmp_path, "disk")
    rows = document["rows"]
    assert {(row["case"], row["arm"]) for row in rows} == {
        (f"{chunk} {durability}", arm)
        for chunk in ("64.00 KiB", "256.00 KiB")
        for durability in ("process", "step")
        for arm in ("raw", "pipeline")
    }
    for row in rows:
        assert row["bytes_per_s"] > 0
        assert row["pages_in_flight"] >= 2
    assert document["claims"]["of_raw"] > 0
