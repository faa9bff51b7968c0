"""The benchmark of what safety costs runs, and knows its answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.test_benchmarks import run_smoke


@pytest.mark.slow
def test_restart_runs(tmp_path: Path) -> None:
    """Goal: a node restarts on states of two sizes, pages are counted, and every level trains to
    the same weights, which the program checks."""
    document = run_smoke(tmp_path, "restart", label=None)
    found = {(row["case"], row["arm"]): row for row in document["rows"]}
    assert set(found) == {
        *(("restart", arm) for arm in ("torch", "100k", "200k")),
        *(("written", arm) for arm in ("16KiB", "1MiB")),
        *(("durability", arm) for arm in ("none", "process", "step")),
    }
    assert {row["label"] for (case, _), row in found.items() if case != "durability"} == {
        "measured"
    }
    assert found["durability", "step"]["label"] == "emulated"
    assert set(document["claims"]) == set(document["claims_meaning"])
    for arm in ("16KiB", "1MiB"):
        assert found["written", arm]["written_ratio"] > 0.9
