"""Arms of the same switch: luwu with its state on disk, and in RAM."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.processes.commands import terminal
from tests.processes.jobs import SMALL, plain_digest, text_file

STEPS = 3
WORKERS = 2


@pytest.mark.slow  # two arms with real processes
@pytest.mark.feature("one job in RAM and out of core, side by side")
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("on_the_cpu")
def test_where_the_state_is_kept_changes_no_bit(tmp_path: Path) -> None:
    """Goal: both arms end with the bits of plain torch, each with a budget of its own, and no page
    of the second is on a disk. Method: one comparison with real processes."""
    with terminal(tmp_path) as shell:
        done = shell.start(
            "compare", "--arms", "luwu,luwu_ram", "--steps", str(STEPS), *SMALL,
            "--workers", str(WORKERS), "--data", str(text_file(shell.directory)),
            "--memory-budget", "1MiB", "--run-dir", "run", "--json", "found.json",
        )  # fmt: skip
        assert done.wait(limit_s=240) == 0, done.err
        found: list[dict[str, Any]] = json.loads((tmp_path / "found.json").read_text())["arms"]
        assert re.search(r"^luwu(,| and) luwu_ram end with the same weights", done.out, re.M)
        assert shell.leftovers() == []
    on_disk, in_ram = found
    assert in_ram["weights_digest"] == on_disk["weights_digest"] == plain_digest(STEPS)
    assert in_ram["loss"] == on_disk["loss"]
    assert on_disk["memory_budget_bytes"] == 1 << 20
    assert in_ram["memory_budget_bytes"] > 2 * in_ram["node_state_bytes"]
    assert on_disk["disk_space_bytes"] > 0 == in_ram["disk_space_bytes"]
    assert in_ram["disk_bytes"] in (None, {"read": 0, "written": 0})
