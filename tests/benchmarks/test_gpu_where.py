"""`benchmarks.gpu_where`: idle time has one cause and one unit; a worker on a CPU is watched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_idle import Activity, arrivals, idle
from benchmarks.gpu_where import lock_shares
from tests.benchmarks.test_benchmarks import run_smoke


def span(name: str, start_ns: int, end_ns: int, unit: str, step: int) -> dict[str, Any]:
    return {"name": name, "start_ns": start_ns, "end_ns": end_ns, "unit": unit, "step": step}


SPANS = [
    span("forward", 0, 90, "root", 0), span("forward", 20, 60, "block", 0),
    span("pull_wait", 30, 40, "block", 0), span("pull", 5, 40, "block", 0),
    span("backward", 100, 180, "block", 0), span("forward", 200, 300, "root", 1),
    span("pull", 150, 190, "root", 1),
]  # fmt: skip
ACTIVITY = Activity(
    # handed out in: root, block, block's backward, the next step
    compute=[(0, 25, 0), (45, 80, 42), (100, 170, 101), (230, 300, 210)],
    copies_in=[(35, 45), (80, 90), (100, 110)],
    copies_out=[(165, 175)],
)


def test_each_idle_nanosecond_has_one_cause_and_one_unit() -> None:
    """Goal: waiting goes before copying, copying before a late host; the end of a step goes before
    all of them, from its last backward on."""
    found = idle(ACTIVITY, SPANS, range(2))
    assert found is not None
    assert (found.length_ns, found.busy_ns) == (300, 200)
    assert found.by_cause_ns == {"step end": 50, "weights": 10, "copy": 15, "host": 25}
    assert found.by_unit_ns == {
        "block": {"step end": 0, "weights": 10, "copy": 15, "host": 15},
        "root": {"step end": 50, "weights": 0, "copy": 0, "host": 10},
    }
    assert found.in_behind_compute == pytest.approx(10 / 30)
    assert found.out_behind_compute == 0.5
    assert idle(ACTIVITY, SPANS, range(5, 6)) is None


def test_weights_are_early_or_late() -> None:
    found = {each.unit: each.early_ns for each in arrivals(SPANS, range(2))}
    assert found == {"block": -10, "root": 10}


def test_the_lock_is_counted_by_role_and_thread() -> None:
    """Goal: of nested processes the innermost counts; an agent that waits for its worker does
    not."""
    outer = 'process 1:"python -m benchmarks.gpu_where"'
    guard = 'process 2:"python -m luwu.launch.processes.guard x luwu.launch.agent {"a"}"'
    agent = 'process 3:"python -m luwu.launch.agent {"a"}"'
    worker = 'process 4:"python -m luwu.launch.agent {"a"}"'
    node = 'process 5:"python -m luwu.base.own switch_emu node"'
    found = lock_shares([
        f"{outer};thread (1): MainThread;f (x.py:1) 50",
        f"{outer};{guard};{agent};thread (3): MainThread;f (x.py:1) 50",
        f"{outer};{guard};{agent};{worker};thread (4): MainThread;f (x.py:1);g (y.py:2) 6",
        f"{outer};{guard};{agent};{worker};thread (7): luwu-copy;f (x.py:1) 2",
        f"{outer};{node};thread (8) 4",
        "not a line of samples",
    ])  # fmt: skip
    assert found == {
        "worker": {"MainThread": 0.75, "luwu-copy": 0.25}, "node": {"without a name": 1.0},
    }  # fmt: skip


@pytest.mark.slow
def test_gpu_where_runs_on_a_cpu(tmp_path: Path) -> None:
    """Goal: with streams that are threads, a worker goes the way of a GPU: copies, idle time by
    unit, arrivals, and the losses of plain torch."""
    document = run_smoke(tmp_path, "gpu_where")
    ours = next(row for row in document["rows"] if row["arm"] == "luwu")
    assert ours["idle"]["steps"] == 2
    assert ours["idle"]["in_behind_compute"] is not None
    assert {"root", "blocks.0"} <= set(ours["arrivals"])
    assert ours["thread_seconds"]["compute"] > 0
    assert not document["is_gpu_result"]
