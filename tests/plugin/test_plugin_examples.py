"""Examples in the docstrings of the plugin's fixtures: test files of a user, run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.docstrings import blocks, public_of_testing
from tests.plugin.sandbox import LIMIT_S, Sandbox, luwu_up

pytestmark = pytest.mark.timeout(LIMIT_S)


def test_plugin_examples_of_docstrings_pass(sandbox: Sandbox, tmp_path: Path) -> None:
    """Goal: every fixture and factory has an example, and all of them pass. Method: one pytest of
    its own, with a `luwu up` for the fixture that joins a job elsewhere."""
    count = 0
    for name, docstring in public_of_testing().items():
        (block,) = blocks(docstring)
        sandbox.write(block, f"test_{name.replace('.', '_')}.py")
        count += block.count("\ndef test_")
    with luwu_up(tmp_path / "up") as connect:
        output = sandbox.run("--luwu-connect", connect)
    assert f"{count} passed" in output
