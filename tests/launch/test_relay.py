"""What worker 0 prints, on its way to the terminal; what a resumed run says."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from luwu.base.events import Recorder
from luwu.base.json_file import write_json
from luwu.launch.processes.console import Console
from luwu.launch.processes.relay import ByLine, Relay, stream_files
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.starting import beginning, ending, first_step, stopped


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


@pytest.mark.feature("progress bars of worker 0")
def test_output_is_passed_on_as_it_comes_each_stream_by_itself(run: RunDirectory) -> None:
    """Goal: half a line is passed on; streams are told apart; the log has both, in order."""
    came: list[tuple[bytes, bool]] = []
    with Relay(run, "worker-0", lambda data, is_error: came.append((data, is_error))) as relay:
        out, error = stream_files(run, "worker-0")
        with out.open("ab", buffering=0) as stdout, error.open("ab", buffering=0) as stderr:
            stderr.write(b"\r 10%")
            relay.look()
            assert came == [(b"\r 10%", True)]
            relay.look()
            stderr.write(b"\r 20%")
            relay.look()
            stdout.write(b'{"loss": 1}\n')
    assert came[1:] == [(b"\r 20%", True), (b'{"loss": 1}\n', False)]
    assert run.log("worker-0").read_bytes() == b'\r 10%\r 20%{"loss": 1}\n'
    assert not out.exists()
    assert not error.exists()


def test_lines_of_two_streams_do_not_mix() -> None:
    """Goal: who wants lines gets whole ones, and the last one at the end."""
    lines: list[str] = []
    by_line = ByLine(lines.append)
    by_line(b"one\ntw", False)
    by_line(b"error", True)
    by_line(b"o\n", False)
    assert lines == ["one", "two"]
    by_line.end()
    assert lines == ["one", "two", "error"]


def test_a_line_of_ours_does_not_begin_inside_a_progress_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a notice stands on a line of its own; details are left out unless asked for."""
    printed, results = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", results)
    console = Console(printed, details=False)
    console.detail("left out")
    console.pass_on(b"\r 50%", True)
    console.pass_on(b"42", False)
    console.say("worker 1 was lost")
    console.say("again")
    assert printed.getvalue() == "\r 50%\nworker 1 was lost\nagain\n"
    assert results.getvalue() == "42"


@pytest.mark.feature("--resume reports where it begins")
def test_a_resumed_run_says_where_it_begins(run: RunDirectory) -> None:
    """Goal: no state, a state and a finished one are told apart, in words; a last line that is
    still being written is left out."""
    state = Path("state")
    assert first_step(run) is None
    assert beginning(state, None) == "no state in state: starting at step 0"
    with Recorder(role="node", path=run.events("node"), printed=None) as recorder:
        recorder.event("node.opened", version=7)
    with run.events("node").open("ab") as file:
        file.write(b'{"name":"node.opened","text":"\xc3')  # cut in the middle of a letter
    assert first_step(run) == 7
    assert beginning(state, 7).startswith("resuming at step 7; the place in the data is not")
    assert "docs/training.md" in beginning(state, 7)
    write_json(run.result("node.json"), {"steps": 7})
    assert ending(run, state, 7) == "state holds step 7: nothing to do"
    write_json(run.result("node.json"), {"steps": 8})
    assert ending(run, state, 7) is None


@pytest.mark.feature("Ctrl-C, USR1, USR2, XCPU, QUIT")
def test_a_run_that_was_stopped_says_how_it_goes_on(run: RunDirectory) -> None:
    """Goal: the last decided step, and a command that can be pasted as it stands."""
    flags = {"workers": "2", "state": "my state", "no_switch": "true", "run_dir": "old"}
    script = ["train.py", "--lr", "1e-3"]
    assert stopped(run, Path("s"), flags, script).endswith("No step was decided yet")
    with Recorder(role="node", path=run.events("node"), printed=None) as recorder:
        recorder.event("node.opened", version=0)
        for step in range(3):
            recorder.event("node.step", step=step)
    first, command = stopped(run, Path("my state"), flags, script).splitlines()
    assert first.endswith("Step 2 is decided and kept in my state; go on with")
    assert command == (
        "luwu run --workers 2 --state 'my state' --no-switch --resume train.py --lr 1e-3"
    )
    assert "in RAM only" in stopped(run, None, flags, script)
