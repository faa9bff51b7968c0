"""A state that a run has open: the message names the directory of that run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from luwu.base.json_file import write_json
from luwu.commands.export import source_of
from luwu.launch.processes.run_directory import RunDirectory
from switch_emu.store import FilePageStore
from tests.node.test_nodes import make_state


@pytest.mark.feature("export of a directory in use")
@pytest.mark.parametrize("part", ["", "node-1"])
def test_the_run_that_uses_a_state_is_named(tmp_path: Path, part: str) -> None:
    """Goal: E204 of export and snapshot ends with the command that works.
    Method: a process whose command line is that of a node, as the launcher starts it."""
    state = tmp_path / "state"
    make_state(state, 1 + bool(part))
    run = RunDirectory.create(tmp_path / "run")
    config = run.role("node.json")
    write_json(config, {"spec": {"state": str(state / part)}})
    waits = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    node = subprocess.Popen(
        [*waits, "switch_emu", "node", "--config", str(config)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert node.stdout is not None
    node.stdout.readline()  # its command line stands where others see it

    def refusal() -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            source_of(str(state), "export")
        return caught.value

    try:
        with FilePageStore.open(state / part):
            found = refusal()
        assert str(found).endswith(f"name its run directory: luwu export {run.path} OUT")
        assert found.code == "E204"
        shutil.rmtree(state)
        assert "name its run" not in str(refusal())
    finally:
        node.communicate()
    make_state(state, 1 + bool(part))
    with FilePageStore.open(state / part):
        assert "name its run" not in str(refusal())
