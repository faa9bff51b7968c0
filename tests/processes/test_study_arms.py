"""Arms on the same switch: luwu in RAM too, `ps`, whose switch hands on, and `ina-allreduce`."""

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


@pytest.mark.slow  # three arms with real processes
@pytest.mark.feature("the switch without adding, and for a replicated model")
@pytest.mark.feature("one job in RAM and out of core, side by side")
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("on_the_cpu")
def test_arms_on_one_switch_differ_in_what_the_links_carry(tmp_path: Path) -> None:
    """Goal: a parameter server ends with the bits of plain torch, and its node takes every worker's
    gradient and sends every worker's copy; the replicated model's workers send and receive one
    gradient; and where the state is kept changes no bit, with a budget of its own for each arm.
    Method: one comparison with real processes; bytes as workers and node counted them."""
    with terminal(tmp_path) as shell:
        done = shell.start(
            "compare", "--arms", "luwu_ram,ps,ina-allreduce", "--steps", str(STEPS), *SMALL,
            "--workers", str(WORKERS), "--data", str(text_file(shell.directory)),
            "--memory-budget", "1MiB", "--run-dir", "run", "--json", "found.json",
        )  # fmt: skip
        assert done.wait(limit_s=240) == 0, done.err
        document = json.loads((tmp_path / "found.json").read_text())
        found: list[dict[str, Any]] = document["arms"]
        assert re.search(r"^luwu_ram(,| and) ps.* end with the same weights", done.out, re.M)
        assert shell.leftovers() == []
    in_ram, ps, ina = found
    assert in_ram["weights_digest"] == ps["weights_digest"] == plain_digest(STEPS)
    assert in_ram["loss"] == ps["loss"]
    assert ps["memory_budget_bytes"] == 1 << 20
    assert in_ram["memory_budget_bytes"] > 2 * in_ram["node_state_bytes"]
    assert ps["disk_space_bytes"] > 0 == in_ram["disk_space_bytes"]
    assert in_ram["disk_bytes"] in (None, {"read": 0, "written": 0})
    assert in_ram["estimate"]["step_seconds"] > 0
    assert (tmp_path / "run" / "luwu_ram" / "floors.json").exists()
    weights_bytes = 4 * document["job"]["parameters"]
    gradients_bytes = WORKERS * STEPS * weights_bytes
    assert ps["network_bytes"]["into_node"] == gradients_bytes
    # What a worker had asked for ahead when it left, all weights at most, is served or not.
    unused_bytes = ps["network_bytes"]["out_of_node"] - ps["network_bytes"]["pull"]
    assert abs(unused_bytes) <= WORKERS * weights_bytes < ps["network_bytes"]["pull"] / 2
    for way in ("push", "pull"):  # of all workers: one gradient up and one mean down a step
        assert ina["network_bytes"][way] == gradients_bytes, way
    assert ina["loss"] == pytest.approx(ps["loss"], abs=1e-4)
    assert ina["worker_optimizer_bytes"] > 0
