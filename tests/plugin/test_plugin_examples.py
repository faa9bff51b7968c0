"""Examples in the docstrings of the plugin's fixtures: test files of a user, run as they stand."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from luwu.testing.cluster import Cluster
from tests.helpers.docstrings import blocks, public_of_testing
from tests.plugin.sandbox import LIMIT_S, make_sandbox

pytestmark = pytest.mark.timeout(LIMIT_S)


def test_plugin_examples_of_docstrings_pass(tmp_path: Path) -> None:
    """Goal: every fixture and factory has an example, and all of them pass. Method: one pytest of
    its own, with a `luwu up` for the fixture that joins a job elsewhere."""
    with make_sandbox(tmp_path) as sandbox:
        count = 0
        for name, docstring in public_of_testing().items():
            (block,) = blocks(docstring)
            sandbox.write(block, f"test_{name.replace('.', '_')}.py")
            count += block.count("\ndef test_")
        folder = tmp_path / "up"
        folder.mkdir()
        flags = ["--run-dir", str(folder / "run"), "--memory-budget", "64MiB"]
        with Cluster(folder, ["up", "--workers", "2", "--durability", "none", *flags]) as cluster:
            cluster.wait_for_text("join    luwu run")
            output = sandbox.run("--luwu-connect", str(cluster.run_directory.connect_file))
            cluster.signal(signal.SIGTERM)
            assert cluster.wait(10) == 0
    assert f"{count} passed" in output
