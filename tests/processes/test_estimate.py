"""What was planned before a run stands beside what the run came to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from luwu.commands.main import main as luwu_main
from tests.helpers.schemas import check
from tests.processes.commands import Terminal, terminal, write_tiny
from tests.report.test_timeline import rows_of

STEPS = 8


@dataclass(frozen=True)
class Ran:
    """A `luwu run` of a script, with a timeline. The disk is so slow that it binds."""

    directory: Path
    err: str


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    directory = tmp_path_factory.mktemp("ran")
    with terminal(directory) as shell:
        script = write_tiny(directory / "tiny.py", steps=STEPS)
        flags = ("--workers", "1", "--run-dir", "run", "--disk-rate", "10KB/s")
        done = shell.succeed("run", *flags, str(script))
        shell.succeed("trace", "run", "--out", "t.json")
        assert shell.leftovers() == []
        return Ran(directory, done.err)


def test_a_run_says_what_its_steps_took(ran: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: of a script whose model nobody knew before, `luwu run` says at its end how long steps
    took, and what limits them; `luwu report` says it again."""
    assert luwu_main(["report", str(ran.directory / "run")]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    assert f"{STEPS} steps are decided" in lines[0]
    assert "Disk-bound" in lines[1]
    assert all(line in ran.err for line in lines)
    assert (ran.directory / "run" / "report.html").exists()
    assert luwu_main(["status", "--json", str(ran.directory / "run")]) == 0
    check("status", json.loads(capsys.readouterr().out))


def test_a_script_that_is_run_leaves_a_timeline(ran: Ran) -> None:
    """Goal: it has all processes, whatever program trains."""
    events = json.loads((ran.directory / "t.json").read_text())["traceEvents"]
    processes = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert processes == {"worker 0", "switch", "node"}
    assert {process for process, _ in rows_of(events)} == processes


def test_a_run_that_went_well_ends_well_whatever_its_events_are(shell: Terminal) -> None:
    """Goal: the node's events were damaged; the steps are decided, so the exit code is 0, and the
    report has the steps that can be read. Method: the script damages them."""
    script = write_tiny(shell.directory / "tiny.py", steps=STEPS)
    events = shell.directory / "run" / "events" / "node.jsonl"
    with script.open("a") as file:
        file.write(f"with open({str(events)!r}, 'a') as file:\n    file.write('nonsense\\n')\n")
    done = shell.succeed("run", "--workers", "1", "--run-dir", "run", str(script))
    assert f"{STEPS} steps are decided" in done.err
