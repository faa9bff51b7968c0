"""A step of FSDP2 by torch's profiler, as the report shows it beside LuWu's."""

from __future__ import annotations

import json
from pathlib import Path

from luwu.report.lanes import lanes_of
from tests.processes.jobs import SMALL, compare


def test_a_step_of_fsdp_has_lanes(tmp_path: Path) -> None:
    """Goal: forward and backward, what FSDP2 does between them on the training thread, its
    collectives and the optimizer, of the last step; the page shows it, and the memory of the arm
    is without the profiler's. Method: a real run of two ranks."""
    found = compare(tmp_path, "--workers", "2", "--steps", "6", *SMALL, arms="fsdp,single")
    step = lanes_of(found.arm("fsdp")["profiled_step"])
    assert (step.step, step.system) == (5, "fsdp")
    for engine in ("compute", "wait", "pull", "push", "update"):
        assert 0 < step.busy_ratio(engine) < 1, engine
    assert step.busy_ratio("compute") + step.busy_ratio("wait") + step.busy_ratio("update") < 1.01
    compute = next(lane for lane in step.lanes if lane.engine == "compute")
    assert {piece.is_pale for piece in compute.pieces} == {True, False}
    assert "Compute is busy" in step.verdict
    assert found.arm("single")["profiled_step"] is None
    sampled = json.loads((tmp_path / "run" / "fsdp-memory.json").read_text())["peak_bytes"]
    taken = found.arm("fsdp")["worker_peak_rss_bytes"]
    assert all(0 < own < sampled[f"worker-{rank}"] for rank, own in enumerate(taken))
    assert found.arm("fsdp")["memory_peak_bytes"] == sum(taken)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "One step of fsdp, by torch's profiler" in page
    assert "reduce-scatter" in page
