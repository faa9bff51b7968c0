"""What a newcomer's first commands say (`pytest -k first_hour`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.commands import Terminal, terminal, write_tiny


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Terminal]:
    with terminal(tmp_path) as opened:
        yield opened
        assert opened.leftovers() == []


WAITS = """
import os
while os.environ["RANK"] == "0" and not os.path.exists("go"):
    pass
"""


@pytest.mark.feature("a script without luwu.init() under luwu run")
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


PRINTS = """
import sys
print("\\r 50%", end="", file=sys.stderr, flush=True)
print('{"loss": 1}')
"""


@pytest.mark.feature("progress bars of worker 0")
@pytest.mark.feature("--resume reports where it begins")
def test_first_hour_output_and_resume(shell: Terminal) -> None:
    """Goal: standard output is the script's alone; at most three lines of ours come before its
    first; --resume says what it found: nothing, and then a state in which nothing is left to do."""
    write_tiny(shell.directory / "tiny.py", first=PRINTS)
    arguments = ("run", "--workers", "1", "--resume", "--state", "state", "tiny.py")
    first = shell.run(*arguments)
    assert first.process.returncode == 0, first.err
    assert first.out == '{"loss": 1}\n'
    ours = [line for line in first.err.partition("50%")[0].splitlines() if line.strip()]
    assert len(ours) <= 3, ours
    assert "no state in state: starting at step 0" in ours
    second = shell.run(*arguments)
    assert second.process.returncode == 0, second.err
    assert "resuming at step 1; the place in the data is not restored" in second.err
    assert "state holds step 1: nothing to do" in second.err
