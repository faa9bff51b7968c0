"""What a newcomer's first commands say (`pytest -k first_hour`)."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.processes.commands import Terminal

WAITS = """
import os
while os.environ["RANK"] == "0" and not os.path.exists("go"):
    pass
"""


@pytest.mark.feature("a script without luwu.init(), or started without luwu run")
def test_first_hour_a_script_that_never_joins(shell: Terminal) -> None:
    """Goal: said while the second worker still runs; the end follows at once, with code 2."""
    script = shell.directory / "plain.py"
    script.write_text(WAITS)
    command = shell.start("run", "--workers", "2", "--state", "state", "plain.py")
    command.wait_for("the script of worker 1 has ended, and no worker has joined the job")
    (shell.directory / "go").touch()
    assert command.wait() == 2
    assert "luwu run: the script of worker 0, 1 has ended" in command.err
    assert "luwu.init()" in command.err.splitlines()[-1]


@pytest.mark.feature("Ctrl-C, USR1, USR2, XCPU, QUIT")
@pytest.mark.parametrize("to_all", [False, True], ids=["the-command", "all-its-processes"])
def test_a_signal_of_a_batch_system_stops_a_run(shell: Terminal, *, to_all: bool) -> None:
    """I8. Goal: it is named, the run stops as after Ctrl-C, and says how it goes on."""
    gate = str(shell.directory / "gate")
    light = ("-m", "tests.light_job", "--steps", "3", "--gate", gate)
    command = shell.start("run", "--workers", "1", "--state", "state", *light)
    command.wait_for("light waits step=2")
    pids = shell.processes() if to_all else [command.process.pid]
    for pid in sorted(pids):  # the launcher's is the lowest
        os.kill(pid, signal.SIGUSR1)
    assert command.wait(30.0) == 130
    assert "luwu: SIGUSR1: stopping\n" in command.err
    assert re.search("Step [01] is decided and kept in state; go on with", command.err)
