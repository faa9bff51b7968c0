"""States in memory: what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from luwu.base.config import RunConfig
from luwu.base.directories import memory_kind
from luwu.launch.starting import state_text
from switch_emu.node.process import plan_lines
from switch_emu.node.spec import NodeSpec

SHARED = Path("/dev/shm")


@pytest.mark.feature("a state on tmpfs")
@pytest.mark.skipif(memory_kind(SHARED) != "tmpfs", reason="/dev/shm is no tmpfs here")
def test_a_state_in_memory_survives_no_power_loss() -> None:
    """Goal: the start of a run and the node promise what holds there. Method: a state that is still
    to be made on the tmpfs that Linux has."""
    state = SHARED / "luwu-none" / "state"
    told = state_text(RunConfig(), state)
    assert told.endswith("(in memory, tmpfs: survives the end of any process, but no reboot)")
    assert state_text(RunConfig(), Path("/proc")) == "state /proc (survives power loss)"
    spec = NodeSpec(
        job=1, world_size=1, listen="", summary=SHARED, state=state, memory_budget_bytes=1 << 30,
        chunk_bytes=1 << 16,
    )  # fmt: skip
    line = plan_lines(spec)[0]
    assert line.startswith(f"state in {state} (memory: tmpfs); durability step: every decided step")
    assert line.endswith("not power loss")
    assert plan_lines(replace(spec, state=Path("/proc")))[0].endswith("survives power loss")
