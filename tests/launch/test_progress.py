"""What is read of the progress of a run: no process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.progress import Decided
from tests.soak_faults import out_of_order


def told(*events: tuple[str, int | None]) -> str:
    lines = []
    for at, (name, number) in enumerate(events):
        key = "version" if name == "node.opened" else "step"
        lines.append(json.dumps({"name": name, "role": "node", "at_ns": at, key: number}) + "\n")
    return "".join(lines)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((("node.step", 3), ("node.opened", 4), ("node.step", 4)), None),
        ((("node.step", 3), ("node.opened", 5), ("node.step", 5)), None),
        ((("node.opened", None), ("node.step", 0), ("node.opened", 1)), None),
        ((("node.step", 3), ("node.opened", 3)), "restarted with 3 steps"),
        ((("node.step", 3), ("node.step", 3)), "step 3 was decided after step 3: again"),
        ((("node.step", 3), ("node.step", 5)), "after step 3: with steps left out"),
    ],
)
def test_steps_go_on_by_one(
    tmp_path: Path, events: tuple[tuple[str, int | None], ...], said: str | None
) -> None:
    """I1, I2. Goal: a step lost, repeated or left out is seen; a restart alone is nothing."""
    run = RunDirectory.create(tmp_path / "run")
    run.events("node").write_text(told(*events))
    found = out_of_order(run.events("node"))
    assert len(found) == int(said is not None)
    assert said is None or said in found[0]


def test_what_is_written_later_and_lines_cut_short(tmp_path: Path) -> None:
    """Goal: decided steps are counted though a kill left half a line."""
    run = RunDirectory.create(tmp_path / "run")
    decided = Decided(run)
    assert decided.count() == 0
    with run.events("node").open("a") as file:
        file.write(told(("node.opened", 0), ("node.step", 0)) + '{"name":"read","st')
        file.flush()
        assert decided.count() == 1
        file.write('{"name":"clock"}\n' + told(("node.opened", 1), ("node.step", 1)))
        file.flush()
        assert decided.count() == 2
    assert out_of_order(run.events("node")) == []
