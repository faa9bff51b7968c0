"""What stands around a worker's script: its events are kept, however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from luwu.launch.processes.run_directory import RunDirectory

RECORDS = """
import os, signal, sys, threading, time
from pathlib import Path
from luwu.base.events import Recorder

recorder = Recorder(role="worker", path=Path({path!r}), printed=None)
recorder.span("forward", 1, 2, step=0)
threading.Thread(target=lambda: (recorder, threading.Event().wait()), daemon=True).start()
{end}
"""
ENDS = {
    "the end of the script": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise ValueError('no')", 1),
    "an abort, then a kill": (
        "recorder.flush(); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL
    ),
    "a signal to stop": (
        "os.kill(os.getpid(), signal.SIGTERM)\nwhile True: time.sleep(1)", -signal.SIGTERM
    ),
}  # fmt: skip


def run_script(directory: Path, text: str, *, code: int) -> str:
    """Run a script as worker 0, to this exit code; its log."""
    script = directory / "script.py"
    script.write_text(text)
    run = RunDirectory.create(directory / "run")
    command = [sys.executable, "-m", "luwu.launch.entry", str(run.path), "", str(script)]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=60)
    said = run.log("worker-0").read_text()
    assert ended.returncode == code, said
    return said


@pytest.mark.feature("events of a worker, however its script ends")
@pytest.mark.parametrize("end", ENDS)
def test_events_of_a_script_at_module_level_are_kept(tmp_path: Path, end: str) -> None:
    """Goal: no end of a script loses the records it made, wherever its code stands.
    Method: real workers' processes whose recorder is held by a thread, as a SmartNIC's is,
    and closed by nobody."""
    text, code = ENDS[end]
    path = tmp_path / "worker-0.jsonl"
    run_script(tmp_path, RECORDS.format(path=str(path), end=text), code=code)
    names = [json.loads(line)["name"] for line in path.read_text().splitlines()]
    assert names == ["clock", "forward"]


@pytest.mark.feature("breakpoint() under luwu run")
def test_a_breakpoint_says_where_it_works(tmp_path: Path) -> None:
    """Goal: the line of the script, and how a debugger is used; not the quitting of one."""
    said = run_script(tmp_path, "breakpoint()\n", code=2)
    assert "script.py" in said
    assert "Replace luwu.init() with luwu.init_local()" in said
