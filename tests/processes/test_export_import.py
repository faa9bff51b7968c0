"""luwu export and import as a user types them, around real runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from luwu.commands.main import main
from luwu.testing.cluster import SOURCE
from tests.helpers.exports import OptimizerJob, train
from tests.helpers.schemas import check
from tests.processes.commands import Terminal, write_tiny


@pytest.mark.slow
@pytest.mark.timeout(300)  # three runs, each with a torch to load in every process
@pytest.mark.feature("export and import")
def test_export_import_between_runs_of_four_and_two_workers(
    shell: Terminal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: a script trains with 4 workers, its state is exported and imported with another chunk,
    and with 2 workers it goes on from both states to the same weights; nothing is left behind."""
    short = str(write_tiny(tmp_path / "short.py", width="600", steps=2))
    long = str(write_tiny(tmp_path / "long.py", width="600", steps=4))
    state, out, new = (str(tmp_path / name) for name in ("state", "out", "new"))

    def exported(source: str, target: str, *flags: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["export", source, target, "--json", *flags]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        check("export", document)
        return document

    def trained(workers: str, where: str, *rest: str) -> None:
        flags = ("--memory-budget", "16MiB", "--transport", "ipc", "--state", where)
        shell.succeed("run", "--workers", workers, *flags, *rest)

    trained("4", state, "--chunk", "16KiB", short)
    border = exported(state, out)
    assert main(["import", out, "--state", new, "--chunk", "32KiB"]) == 0
    for where in (state, new):
        trained("2", where, "--resume", long)
    ends = [exported(where, f"{where}-end", "--no-optimizer") for where in (state, new)]
    assert [border["step"], *(end["step"] for end in ends)] == [2, 4, 4]
    assert ends[0]["weights_digest"] == ends[1]["weights_digest"] != border["weights_digest"]


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
