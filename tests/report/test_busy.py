"""When engines were busy."""

from __future__ import annotations

from pathlib import Path

from luwu.report.aligned import Steps, survey
from luwu.report.busy import compute_of, covered, spans_of
from tests.report.test_timeline import clock, span, write


def test_compute_is_without_waits_and_copies(tmp_path: Path) -> None:
    """Goal: what lies within or beside another span counts once, and other steps do not count."""
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
            span("pull", 300, 320, step=1, unit=1),
        ],
    )
    found = survey(tmp_path, Steps(0, 1))
    spans = spans_of(found.files[0], found)
    assert compute_of(spans).total_ns == 180
    assert covered([spans], "pull").total_ns == 20
