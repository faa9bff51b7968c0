"""luwu export as a user types it, and stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from luwu.testing.cluster import SOURCE
from tests.helpers.exports import OptimizerJob, train


@pytest.mark.feature("export: complete or not at all")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_export_import_stopped_by_a_signal_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Goal: a signal in the middle of an export ends it with code 130 and without a trace.
    Method: a source that sends the signal to its own process at its third read."""
    train(OptimizerJob(steps=1), tmp_path / "state", tmp_path)
    program = f"""
import os, sys
from luwu.checkpoint import source
from luwu.commands.main import main

class Signalling(source.RestingState):
    reads = 0
    def read_field(self, chunk, field, into):
        super().read_field(chunk, field, into)
        Signalling.reads += field == "weight"
        if Signalling.reads == 3:
            os.kill(os.getpid(), {int(number)})

source.RestingState = Signalling
sys.exit(main(["export", "state", "out"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, timeout=60,
    )  # fmt: skip
    assert result.returncode == 130, result.stderr
    assert "stopped before it was complete; nothing was left behind" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
