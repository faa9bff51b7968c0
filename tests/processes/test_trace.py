"""The timeline of a real run, as a user gets it: during `luwu compare`, and afterwards."""

from __future__ import annotations

import json
from pathlib import Path

from tests.processes.commands import Terminal
from tests.processes.jobs import SMALL, text_file
from tests.processes.test_start import LINES_MAX, before
from tests.report.test_timeline import Row, assert_nested, rows_of

STEPS, UNITS, WORKERS = 4, 3, 2


def events_of(path: Path) -> list[Row]:
    """The events of a timeline; times in whole nanoseconds."""
    events: list[Row] = json.loads(path.read_text())["traceEvents"]
    for event in events:
        for key in {"ts", "dur"} & set(event):
            event[key] = round(event[key] * 1000)
    return events


def test_a_run_leaves_a_timeline_of_every_process(shell: Terminal) -> None:
    """Goal: all processes are there; slices of a row nest; what is of a step lies within the run,
    and each unit's work is there once a step; by itself it shows the steady steps. The comparison
    began with at most three lines; its plan is logged."""
    whole = shell.directory / "whole.json"
    done = shell.succeed(
        "compare", "--arms", "luwu", "--steps", str(STEPS), "--run-dir", "run", *SMALL,
        "--workers", str(WORKERS), "--data", str(text_file(shell.directory)),
    )  # fmt: skip
    start = before(done.err, "luwu   step=0")
    assert len(start) <= LINES_MAX
    assert start[0].startswith(f"luwu: compare luwu with {WORKERS} workers; memory ")
    log = shell.directory / "run" / "logs" / "launcher.log"
    assert "plan    memory worker " in log.read_text()
    steady = shell.succeed("trace", "run")
    assert f"steps 1 to {STEPS - 1}, " in steady.out
    events = events_of(shell.directory / "run" / "trace.json")
    assert min(event["ts"] for event in events if event["ph"] == "X") == 0

    shell.succeed("trace", "run", "--all", "--out", str(whole))
    events = events_of(whole)
    found = rows_of(events)
    workers = {f"worker {rank}" for rank in range(WORKERS)}
    assert {process for process, _ in found} == {*workers, "switch", "node"}
    for slices in found.values():
        assert_nested([event for event in slices if event["ph"] == "X"])
    counts = {("switch", "sum"): UNITS, ("node", "update"): UNITS, ("node", "write"): UNITS}
    for worker in workers:
        steps = found[worker, "step"]
        assert [event["args"]["step"] for event in steps] == list(range(STEPS))
        counts |= {(worker, "compute"): 2 * UNITS, (worker, "push"): UNITS}
    for (process, track), count in counts.items():
        slices = [e for key, row in found.items() if key[0] == process for e in row
                  if e["cat"] == track]  # fmt: skip
        assert len(slices) == STEPS * count, (process, track)
    units = {event["args"]["unit"] for event in found["worker 0", "compute"]}
    for event in (event for row in found.values() for event in row):
        if event["cat"] in ("push", "pull", "sum", "update", "write", "read_weights"):
            assert event["name"].split()[1] in units
            assert event["args"]["bytes"] > 0
    run_ns = int(done.seconds * 1e9)
    for event in (event for row in found.values() for event in row):
        assert 0 <= event["ts"] <= event["ts"] + event.get("dur", 0) <= run_ns
    decided = [e["args"]["step"] for e in found["node", "decisions"] if e["name"] == "decided"]
    assert decided == list(range(STEPS))
