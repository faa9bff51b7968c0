"""What a newcomer's first commands say (`pytest -k first_hour`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.commands import Terminal, terminal


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
    assert "luwu.init()" in command.err.splitlines()[-2]
