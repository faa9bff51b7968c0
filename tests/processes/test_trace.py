"""The timeline of a real run, as a user gets it: during `luwu compare`, and afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.commands import Terminal, terminal
from tests.processes.jobs import SMALL, text_file
from tests.unit.test_timeline import arrows, assert_nested, rows_of

STEPS, UNITS, WORKERS = 4, 3, 2


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Terminal]:
    with terminal(tmp_path) as opened:
        yield opened
        assert opened.leftovers() == []


def test_a_run_leaves_a_timeline_of_every_process(shell: Terminal) -> None:
    """Goal: all processes are there; slices of a row nest; what is of a step lies within the run,
    and each unit's work is there once a step; the same file can be made again afterwards."""
    place = shell.directory / "timeline.json"
    done = shell.run(
        "compare", "--arms", "luwu", "--steps", str(STEPS), "--run-dir", "run", *SMALL,
        "--workers", str(WORKERS), "--data", str(text_file(shell.directory)),
        "--trace", str(place),
    )  # fmt: skip
    assert done.process.returncode == 0, done.err
    assert f"trace   {place}" in done.err
    events = json.loads(place.read_text())["traceEvents"]
    for event in events:
        for key in {"ts", "dur"} & set(event):
            event[key] = round(event[key] * 1000)
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
    run_ns = int(done.seconds * 1e9)
    for event in (event for row in found.values() for event in row):
        assert 0 <= event["ts"] <= event["ts"] + event.get("dur", 0) <= run_ns
    decided = [event for event in found["node", "events"] if "decided" in event["name"]]
    assert [event["args"]["step"] for event in decided] == list(range(STEPS))

    ways = arrows(events)
    assert len({number for number, _ in ways}) == STEPS * UNITS
    for (_, worker), way in ways.items():
        assert worker in workers
        kinds = [name.split()[0] for _, name, _ in way]
        assert kinds == ["push", "sum", "update", "pull"], way
        assert len({name.split()[1] for _, name, _ in way}) == 1, "one unit all the way"
        assert [at for *_, at in way] == sorted(at for *_, at in way)
    assert {e["name"] for e in events if e["ph"] == "C"} >= {"push, bytes/s", "sums held, bytes"}

    drawn = shell.run("trace", "run", "--svg", "step.svg", "--step", "2")
    assert drawn.process.returncode == 0, drawn.err
    assert "Step 2: " in (shell.directory / "step.svg").read_text()
    again = shell.run("trace", "run")
    assert again.process.returncode == 0, again.err
    assert (shell.directory / "run" / "trace.json").read_bytes() == place.read_bytes()
    summary = shell.run("trace", "run", "--summary", "--step", "1:3")
    assert summary.process.returncode == 0, summary.err
    rows = [line.split()[:3] for line in summary.out.splitlines()]
    assert ["worker", "1", "push"] in rows
    assert ["node", "update", str(2 * UNITS)] in rows
