"""What a run says of its steps when it has ended."""

from __future__ import annotations

import json

import pytest

from luwu.commands.main import main as luwu_main
from tests.helpers.schemas import check
from tests.processes.commands import Terminal, write_light, write_tiny

STEPS = 8


def test_a_run_says_what_its_steps_took(
    shell: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: of a script whose model nobody knew before, `luwu run` says at its end how long steps
    took, and what limits them; `luwu report` says it again. Method: a slow disk binds."""
    script, run = write_tiny(shell.directory / "tiny.py", steps=STEPS), shell.directory / "run"
    flags = ("--workers", "1", "--run-dir", "run", "--disk-rate", "10KB/s")
    done = shell.succeed("run", *flags, str(script))
    assert luwu_main(["report", str(run)]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    assert f"{STEPS} steps are decided" in lines[0]
    assert "Disk-bound" in lines[1]
    assert all(line in done.err for line in lines)
    assert (run / "report.html").exists()
    assert luwu_main(["status", "--json", str(run)]) == 0
    check("status", json.loads(capsys.readouterr().out))


def test_a_run_that_went_well_ends_well_whatever_its_events_are(shell: Terminal) -> None:
    """Goal: the node's events were damaged; the steps are decided, so the exit code is 0, and the
    report has the steps that can be read. Method: the script damages them."""
    script = write_light(shell.directory / "light.py", steps=STEPS)
    events = shell.directory / "run" / "events" / "node.jsonl"
    with script.open("a") as file:
        file.write(f"with open({str(events)!r}, 'a') as file:\n    file.write('nonsense\\n')\n")
    done = shell.succeed("run", "--workers", "1", "--run-dir", "run", str(script))
    assert f"{STEPS} steps are decided" in done.err
