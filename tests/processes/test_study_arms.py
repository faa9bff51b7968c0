"""Arms on the same switch: luwu in RAM too, `ps`, whose switch hands on, and `ina-allreduce`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.processes.commands import terminal
from tests.processes.jobs import SMALL, text_file

STEPS = 3
WORKERS = 2
OUT = "out_of_node"


@pytest.mark.feature("the switch without adding, and for a replicated model")
@pytest.mark.feature("one job in RAM and out of core, side by side")
@pytest.mark.timeout(300)
def test_arms_on_one_switch_differ_in_what_the_links_carry(tmp_path: Path) -> None:
    """Goal: a parameter server ends with LuWu's bits, and its node takes every worker's gradient
    and sends every worker's copy; the replicated model's workers send and receive one gradient;
    and where the state is kept changes no bit, with a budget of its own for each arm.
    Method: one comparison with real processes; bytes as workers and node counted them."""
    with terminal(tmp_path) as shell:
        done = shell.start(
            "compare", "--arms", "luwu,luwu_ram,ps,ina-allreduce", "--steps", str(STEPS), *SMALL,
            "--workers", str(WORKERS), "--data", str(text_file(shell.directory)),
            "--memory-budget", "1MiB", "--run-dir", "run", "--json", "found.json",
        )  # fmt: skip
        assert done.wait(limit_s=240) == 0, done.err
        document = json.loads((tmp_path / "found.json").read_text())
        found: list[dict[str, Any]] = document["arms"]
        assert re.search(r"^luwu, luwu_ram(,| and) ps.* end with the same weights", done.out, re.M)
        assert shell.leftovers() == []
    luwu, in_ram, ps, ina = found
    assert in_ram["weights_digest"] == luwu["weights_digest"]
    assert in_ram["loss"] == luwu["loss"]
    assert luwu["memory_budget_bytes"] == ps["memory_budget_bytes"] == 1 << 20
    assert in_ram["memory_budget_bytes"] > 2 * in_ram["node_state_bytes"]
    assert luwu["disk_space_bytes"] > 0 == in_ram["disk_space_bytes"]
    assert in_ram["disk_bytes"] in (None, {"read": 0, "written": 0})
    assert min(arm["estimate"]["step_seconds"] for arm in (luwu, in_ram)) > 0
    assert (tmp_path / "run" / "luwu_ram" / "floors.json").exists()
    assert ps["weights_digest"] == luwu["weights_digest"]
    assert ps["loss"] == luwu["loss"]
    up, down = ({a["name"]: a["network_bytes"][w] for a in found} for w in ("into_node", OUT))
    assert up["ps"] == WORKERS * up["luwu"]
    # What a worker had asked for ahead when it left, all weights at most, is served or not.
    weights_bytes = 4 * document["job"]["parameters"]
    assert abs(down["ps"] - WORKERS * down["luwu"]) <= WORKERS * weights_bytes
    for way in ("push", "pull"):  # of all workers: one gradient up and one mean down a step
        assert ina["network_bytes"][way] == luwu["network_bytes"]["push"], way
    assert ina["loss"] == pytest.approx(luwu["loss"], abs=1e-4)
    assert ina["worker_optimizer_bytes"] > 0
