"""How busy engines were, and what lay behind compute."""

from __future__ import annotations

from pathlib import Path

from luwu.report.aligned import Steps
from luwu.report.busy import Busy, Engine, busy, summary_text
from tests.report.test_timeline import clock, span, write


def engine(found: Busy, process: str, name: str) -> Engine:
    return next(e for e in found.engines if (e.process, e.name) == (process, name))


def test_what_lies_behind_compute(tmp_path: Path) -> None:
    """Goal: compute leaves out waits and copies; a worker's engines are held against its own, the
    node's against each worker's."""
    write(
        tmp_path,
        worker_0=[
            clock(),
            span("forward", 0, 100, step=0, unit="root"),
            span("forward", 20, 60, step=0, unit="a"),
            span("pull_wait", 10, 20, step=0, unit="a"),
            span("backward", 100, 200, step=0, unit="root"),
            span("flatten", 190, 200, step=0, unit="root"),
            span("pull", 0, 20, step=0, unit=1),
            span("pull", 10, 20, step=0, unit=2),
            span("push", 180, 220, step=0, unit=0),
        ],
        worker_1=[clock(), span("forward", 0, 50, step=0, unit="root")],
        node=[clock(), span("update", 25, 75, step=0, chunk=0), span("update", 0, 9, step=1)],
    )
    found = busy(tmp_path, Steps(0, 1))
    assert found.length_ns == 220
    compute = engine(found, "worker 0", "compute")
    assert (compute.busy_ns, compute.span_count, compute.behind_compute) == (180, 3, ())
    pull = engine(found, "worker 0", "pull")
    assert (pull.busy_ns, pull.spans_ns, pull.behind_compute) == (20, 30, (0.5,))
    assert engine(found, "worker 0", "push").behind_compute == (0.25,)
    assert engine(found, "worker 0", "pull_wait").behind_compute == (0.0,)
    assert engine(found, "node", "update").behind_compute == (1.0, 0.5)
    text = summary_text(found)
    update = next(line for line in text.splitlines() if line.startswith("node "))
    assert update.split()[:7] == ["node", "update", "1", "0.000", "s", "23%", "1.0"]
    assert update.endswith(" 50% to 100%")
    own = next(line for line in text.splitlines() if line.startswith("worker 0  push"))
    assert own.split()[-1] == "25%"
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_in_which_nobody_computed(tmp_path: Path) -> None:
    """Goal: a host with the switch and the node alone, and steps that nobody ran."""
    write(tmp_path, node=[clock(), span("update", 0, 100, step=0), span("read", 5, 5, step=0)])
    found = busy(tmp_path)
    assert engine(found, "node", "update").behind_compute == ()
    assert "read" in summary_text(found)
    assert summary_text(busy(tmp_path, Steps(7, 8))).startswith("0.000 s")
